"""The sandbox: one isolated machine with an id, a policy, a filesystem and a lifetime."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from cloister.errors import (
    CloisterError,
    Exhausted,
    GuestGone,
    LimitName,
    RequestError,
    RuntimeGone,
)
from cloister.model import (
    UNLIMITED,
    Limits,
    Mount,
    MountMode,
    Profile,
    Result,
    SandboxId,
    Trust,
    User,
    VolumeMount,
    new_sandbox_id,
    parse_bytes,
    parse_command,
    parse_cwd,
    parse_name,
    quote,
)
from cloister.node import Node, TrafficLog
from cloister.policy import Egress, History, LedgerMode, Policy, Root, SecretBinding, Storage
from cloister.runtime.base import Guest
from cloister.runtime.ground import BARE, Ground
from cloister.runtime.plan import Plan
from cloister.sandbox.accounts import Accounts
from cloister.sandbox.asked import policy_changes
from cloister.sandbox.dial import Dialled
from cloister.sandbox.elsewhere import Elsewhere
from cloister.sandbox.feeding import feed
from cloister.sandbox.files import Files
from cloister.sandbox.moduled import Moduled
from cloister.sandbox.observed import Observed
from cloister.sandbox.permission import Permitting
from cloister.sandbox.process import Command, Process, require_terminal_size
from cloister.sandbox.provided import Belonging, Provided
from cloister.sandbox.span import Span
from cloister.sandbox.state import State, Wanted
from cloister.sandbox.stateful import Stateful
from cloister.sandbox.surroundings import Surroundings

if TYPE_CHECKING:
    from cloister.sandbox.approving import Approve

WORKSPACE = "/workspace"
_DEFAULT_POLICY = Policy()


class Sandbox(Elsewhere, Stateful, Permitting, Observed, Moduled, Dialled, Belonging):
    """A complete, safe, offline sandbox; everything it may do more is in its policy.

    Use it as `async with Sandbox() as sandbox:`, or `open()` and `stop()` it yourself.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        limits: Limits | None = None,
        mounts: Sequence[Mount] | None = None,
        env: Mapping[str, str] | None = None,
        profile: Profile | str | None = None,
        trust: Trust | str | None = None,
        runtime: str | None = None,
        require: str | None = None,
        root: Root | None = None,
        image: str | None = None,
        egress: Egress | Sequence[str] | None = None,
        secrets: Mapping[str, Any] | Sequence[SecretBinding] | None = None,
        approve: Approve | None = None,
        volumes: Sequence[VolumeMount | str] | None = None,
        storage: Storage | str | None = None,
        history: History | str | None = None,
        ledger: LedgerMode | str | None = None,
        keep: str | None = None,
        template: str | None = None,
        label: str | None = None,
    ) -> None:
        given = policy_changes(
            limits=limits,
            mounts=mounts,
            env=env,
            profile=profile,
            trust=trust,
            runtime=runtime,
            require=require,
            root=root,
            image=image,
            egress=egress,
            secrets=secrets,
            volumes=volumes,
            storage=storage,
            history=history,
            ledger=ledger,
        )
        base = _DEFAULT_POLICY if policy is None else policy
        if keep is not None and storage is None and not base.storage_is_stated:
            given["storage"] = Storage.DISK
        self.id: SandboxId = new_sandbox_id()
        self.label = label
        self.files = Files(self)
        kept = None if keep is None else parse_name(keep, "keep")
        wanted = Wanted(policy, given, kept, template=template, approve=approve)
        self._state = State(self, wanted)
        self._traffic = TrafficLog()
        self._provided = Provided()
        self._accounts = Accounts(lambda: self._guest, lambda: self._state.is_full())
        self._amend: Callable[[Plan], Plan] | None = None
        self._node: Node | None = None
        self._guest: Guest | None = None
        self._starting: asyncio.Future[None] | None = None
        self._over: CloisterError | None = None
        self._stopping: asyncio.Task[None] | None = None
        self.adopt(base.replace(**given) if given else base, {}, WORKSPACE)

    def adopt(self, policy: Policy, image_env: Mapping[str, str], cwd: str) -> None:
        """Be what this policy says, with what the image adds to it. Before the start only."""
        self.policy = policy
        self._span = Span(policy.limits, self._expire)
        self._surroundings = Surroundings(self.id, image_env, policy.env)
        self._cwd = cwd
        self._cwd_bytes = os.fsencode(parse_cwd(cwd))

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def open(self) -> Self:
        """Start the sandbox. Nothing of it exists if this raises."""
        if self._starting is not None or self._over is not None:
            raise RequestError("this sandbox has been started before; make another one")
        node = Node.current()
        starting = self._starting = asyncio.get_running_loop().create_future()
        try:
            workspace = await self._state.prepare()
            self._node = node
            await self._state.wake()
            await self.start_guest(BARE if workspace is None else workspace.ground)
        except BaseException as error:
            self._starting = None
            await self._state.close(error)
            await self._provided.close()
            raise
        finally:
            starting.set_result(None)
        try:
            # Ended while it was starting: whoever ended it waits for this.
            self._running()
            for mount in self.policy.mounts:
                # What is kept has its copies, and what was done to them.
                if mount.mode is MountMode.COPY and not self._state.is_reopened:
                    await self.files.copy_in(mount.source, str(mount.target))
            await self._state.launch()
            await self._state.listen()
        except BaseException:
            await self.stop()
            raise
        self._state.come_up()
        self._span.begin()
        self.warm_modules()
        return self

    async def stop(self) -> None:
        """End it and everything in it; returns when nothing is left. May be called twice."""
        if self._over is None:
            self._over = GuestGone("the sandbox was stopped", reason="stopped")
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._destroy())
        # A cancelled caller still cleans up: the task goes on, and is waited for by whoever asks.
        await asyncio.shield(self._stopping)

    async def _destroy(self) -> None:
        self._span.end()
        if self._starting is not None:
            await self._starting
        await self.close_modules()
        await self._state.wait_until_moving()
        try:
            await self.end_guest()
        finally:
            await self._state.close(self._over)
            await self._provided.close()

    async def start_guest(self, ground: Ground) -> None:
        """Start a guest on this ground, where there is none, or have one go on from memory."""
        if self._node is None or self._over is not None:
            return
        self._accounts.renew()
        recording = self._state.recording
        if recording is not None:
            self._traffic.listener = recording.crossings
        try:
            provisions = await self._provided.ready(self.policy, self.id, self._surroundings)
            self._guest = await self._node.start(
                self.id,
                self.policy,
                self._lost,
                label=self.label,
                amend=self._amend,
                announce=None if recording is None else recording.plan,
                ground=ground,
                traffic=self._traffic,
                provisions=provisions,
                ask=self._state.ask,
                memory=self._state.memory,
            )
        except CloisterError as error:
            if self._span.begun:
                self._over = error
            raise
        self._state.stands_under(self._guest.pid)
        if recording is not None:
            self._accounts.on_hit = recording.limit
            try:
                await recording.launched(self._guest)
            except BaseException:
                await self.end_guest()
                raise

    async def end_guest(self) -> None:
        """End the guest and everything with it; the disk stays."""
        recording = self._state.recording
        if recording is not None:
            self._accounts.look()
        guest, self._guest = self._guest, None
        if guest is not None and self._node is not None:
            await self._node.destroy(guest)
            if recording is not None:
                await recording.guest_ended()

    async def run(
        self,
        command: str | Sequence[str | bytes],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | User | None = None,
        timeout: float | str | None = None,
        stdin: bytes | str | None = None,
        output: int | None = None,
    ) -> Result:
        """Run a program to its end and return how it ended and what it printed.

        A string runs in a shell, a list is an argv. `cwd` is the image's, or /workspace.
        `timeout` (seconds, or "unlimited") defaults to the policy's wall limit; at its end the
        whole tree of processes is killed. A missing program raises NotFound; a program that fails
        is a Result like any other.
        """
        data = stdin.encode() if isinstance(stdin, str) else stdin
        if data is not None and not isinstance(data, bytes | bytearray | memoryview):
            raise RequestError(f"stdin is {quote(stdin)}; write text or bytes")
        kept_bytes = self.policy.limits.output if output is None else parse_bytes(output, "output")
        timeout_s = self._span.timeout(timeout)
        if self._state.stands_still:
            await self.wait_until_moving()
        if self.runs_modules:
            return await self.call_module(command, None, cwd, env, user, timeout, stdin, output)
        process = self._process(command, cwd, env, user, None, stdin=data is not None)
        self.enter()
        try:
            feeder = None
            try:
                process.begin(tell=False, timeout_s=timeout_s)
                feeder = None if data is None else asyncio.create_task(feed(process, data))
                result = await process.capture(kept_bytes)
            except GuestGone as error:
                raise self._why_gone(error) from None
            finally:
                if feeder is not None:
                    feeder.cancel()
        except BaseException:
            # Cancelled, or the guest misbehaved: no process is left running for nobody.
            await asyncio.shield(process.stop())
            raise
        finally:
            self.leave()
        if self.policy.history is not History.NONE:
            await self.end_step(command, result)
        return result

    async def start(
        self,
        command: str | Sequence[str | bytes],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | User | None = None,
        timeout: float | str | None = UNLIMITED,
        pty: tuple[int, int] | bool = False,
        stdin: bool = False,
    ) -> Process:
        """Start a program and return it running, with its streams.

        `pty` gives it a terminal, (rows, columns) or True for 24 by 80; `stdin` opens its
        standard input. It ends with the sandbox at the latest.
        """
        size = (24, 80) if pty is True else (pty or None)
        if size is not None:
            require_terminal_size(size)
        timeout_s = self._span.timeout(timeout)
        await self.wait_until_moving()
        process = self._process(command, cwd, env, user, size, stdin=stdin)
        self.enter()
        try:
            process.begin(tell=True, timeout_s=timeout_s)
            await process.wait_started()
        except GuestGone as error:
            raise self._why_gone(error) from None
        except BaseException:
            await asyncio.shield(process.stop())
            raise
        finally:
            self.leave()
        return process

    def _process(
        self,
        command: str | Sequence[str | bytes],
        cwd: str | os.PathLike[str] | None,
        env: Mapping[str, str] | None,
        user: str | int | User | None,
        pty: tuple[int, int] | None,
        *,
        stdin: bool,
    ) -> Process:
        self.require_programs("processes that are started and go on")
        argv = parse_command(command)
        who = self.permitted(user, argv)
        packed = self._surroundings.of(argv, who, terminal=pty is not None, further=env)
        where = self._cwd_bytes if cwd is None else os.fsencode(parse_cwd(os.fspath(cwd)))
        details = Command(argv, packed, where, who, pty, stdin)
        record = None if self.recording is None else self._state.record_process
        return self.make_process(details, record)

    async def freeze(self, frozen: bool) -> None:
        """Hold every process still, or let go, whatever the owner asked for."""
        if self._node is not None:
            await self._node.pause(self._running(), frozen)

    def _running(self) -> Guest:
        if self._over is not None:
            raise self._over
        if self._guest is None:
            raise RequestError("this sandbox is not started; use `async with` or await open()")
        return self._guest

    def _why_gone(self, error: GuestGone) -> CloisterError:
        return self._over if isinstance(self._over, Exhausted | RuntimeGone) else error

    def _lost(self, error: CloisterError) -> None:
        """The guest ended by itself, or broke the rules: nothing of the sandbox stays."""
        if self._over is None:
            self._over = self._accounts.why_lost(error)
        if self._stopping is None and self._guest is not None:
            self._stopping = asyncio.get_running_loop().create_task(self._destroy())

    def _expire(self, limit: LimitName) -> None:
        if self._over is None:
            self._over = Exhausted(
                f"the sandbox reached its {limit} limit and was ended; raise Limits({limit}=)",
                limit=limit,
            )
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._destroy())

    def enter(self) -> None:
        """Something is being done with the sandbox: it is not idle."""
        self._running()
        self._span.enter()

    def leave(self) -> None:
        """What `enter` announced is over."""
        self._span.leave()
