"""The sandbox: one isolated machine with an id, a policy, a filesystem and a lifetime."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from cloister.errors import (
    CloisterError,
    Denied,
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
    Reason,
    Result,
    SandboxId,
    SandboxUsage,
    Trust,
    User,
    new_sandbox_id,
    parse_bytes,
    parse_command,
    parse_cwd,
    parse_duration,
    parse_user,
    quote,
)
from cloister.node import Node
from cloister.policy import Exec, Policy, Root, judge
from cloister.policy.judge import Effect
from cloister.runtime.base import Guest, Posture
from cloister.runtime.plan import Plan
from cloister.sandbox.dial import dial
from cloister.sandbox.files import Files
from cloister.sandbox.process import Command, Process, require_terminal_size
from cloister.sandbox.span import Span
from cloister.sandbox.surroundings import Surroundings
from cloister.wire import Exited, Link

WORKSPACE = "/workspace"
_SIGKILL = 9
_DEFAULT_POLICY = Policy()


class Sandbox:
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
        root: Root | None = None,
        label: str | None = None,
    ) -> None:
        changes: dict[str, Any] = {
            "limits": limits,
            "mounts": mounts,
            "env": env,
            "profile": profile,
            "trust": trust,
            "root": root,
        }
        given = {name: value for name, value in changes.items() if value is not None}
        base = _DEFAULT_POLICY if policy is None else policy
        self.policy = base.replace(**given) if given else base
        self.id: SandboxId = new_sandbox_id()
        self.label = label
        self.files = Files(self)
        self._amend: Callable[[Plan], Plan] | None = None
        self._node: Node | None = None
        self._guest: Guest | None = None
        self._starting: asyncio.Future[None] | None = None
        self._over: CloisterError | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._span = Span(self.policy.limits, self._expire)
        self._seen_hits: dict[str, int] = {}
        self._surroundings = Surroundings(self.id, self.policy.env)

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
            self._guest = await node.start(
                self.id, self.policy, self._lost, label=self.label, amend=self._amend
            )
            self._node = node
        except BaseException:
            self._starting = None
            raise
        finally:
            starting.set_result(None)
        try:
            # Ended while it was starting: whoever ended it waits for this.
            self._running()
            for mount in self.policy.mounts:
                if mount.mode is MountMode.COPY:
                    await self.files.copy_in(mount.source, str(mount.target))
        except BaseException:
            await self.stop()
            raise
        self._span.begin()
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
        if self._guest is not None and self._node is not None:
            await self._node.destroy(self._guest)

    async def run(
        self,
        command: str | Sequence[str | bytes],
        *,
        cwd: str | os.PathLike[str] = WORKSPACE,
        env: Mapping[str, str] | None = None,
        user: str | int | User | None = None,
        timeout: float | str | None = None,
        stdin: bytes | str | None = None,
        output: int | None = None,
    ) -> Result:
        """Run a program to its end and return how it ended and what it printed.

        A string runs in a shell, a list is an argv. `timeout` (seconds, or "unlimited") defaults
        to the policy's wall limit; at its end the whole tree of processes is killed. A missing
        program raises NotFound; a program that fails is a Result like any other.
        """
        data = stdin.encode() if isinstance(stdin, str) else stdin
        if data is not None and not isinstance(data, bytes | bytearray | memoryview):
            raise RequestError(f"stdin is {quote(stdin)}; write text or bytes")
        kept_bytes = self.policy.limits.output if output is None else parse_bytes(output, "output")
        timeout_s = self._timeout(timeout)
        process = self._process(command, cwd, env, user, None, stdin=data is not None)
        self.enter()
        try:
            process.begin(tell=False, timeout_s=timeout_s)
            feeder = None if data is None else asyncio.create_task(_feed(process, data))
            try:
                return await process.capture(kept_bytes)
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

    async def start(
        self,
        command: str | Sequence[str | bytes],
        *,
        cwd: str | os.PathLike[str] = WORKSPACE,
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
        timeout_s = self._timeout(timeout)
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
        cwd: str | os.PathLike[str],
        env: Mapping[str, str] | None,
        user: str | int | User | None,
        pty: tuple[int, int] | None,
        *,
        stdin: bool,
    ) -> Process:
        argv = parse_command(command)
        who = self.permitted(user, argv)
        packed = self._surroundings.of(argv, who, terminal=pty is not None, further=env)
        where = os.fsencode(parse_cwd(os.fspath(cwd)))
        details = Command(argv, packed, where, who, pty, stdin)
        return Process(self.link, details, self._account, self._lost)

    def permitted(self, user: str | int | User | None, argv: tuple[bytes, ...] = ()) -> User:
        """Return the user to act as, the policy's own unless named, or raise Denied."""
        if user is None:
            return self.policy.run_as
        who = parse_user(user)
        verdict = judge(Exec(argv, who), self.policy, (), 0.0)
        if verdict.effect is not Effect.ALLOW:
            raise Denied(
                f"acting as {who.uid}:{who.gid} is denied: {verdict.reason}", verdict=verdict
            )
        return who

    def _timeout(self, timeout: float | str | None) -> float | None:
        if timeout is None:
            return self.policy.limits.wall
        return None if timeout == UNLIMITED else parse_duration(timeout, "timeout")

    async def dial(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a TCP port inside and return the two ends of the connection."""
        self.enter()
        try:
            return await dial(self.link, port)
        except GuestGone as error:
            raise self._why_gone(error) from None
        finally:
            self.leave()

    async def usage(self) -> SandboxUsage:
        """Return what the whole sandbox consumes now."""
        guest = self._running()
        disk_bytes, inodes = await self.files.space()
        counted = guest.usage()
        return SandboxUsage(
            cpu_s=counted.cpu_s,
            memory_bytes=counted.memory_bytes,
            peak_memory_bytes=counted.peak_memory_bytes,
            pids=counted.pids,
            peak_pids=counted.peak_pids,
            disk_bytes=disk_bytes,
            inodes=inodes,
            oom_kills=counted.oom_kills,
        )

    async def pause(self) -> None:
        """Stop every process inside; memory stays, no CPU is used."""
        if self._node is not None:
            await self._node.pause(self._running(), True)

    async def resume(self) -> None:
        """Let every process inside continue."""
        if self._node is not None:
            await self._node.pause(self._running(), False)

    @property
    def posture(self) -> Posture:
        """What the kernel said was true before anything ran."""
        return self._running().posture

    @property
    def plan(self) -> Plan:
        """Everything the launcher was told."""
        return self._running().plan

    @property
    def host_pids(self) -> tuple[int, ...]:
        """Process numbers on the host of everything inside."""
        return self._running().host_pids

    @property
    def link(self) -> Link:
        """The connection to the guest."""
        return self._running().link

    @property
    def is_running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._guest is not None and self._over is None

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
            if self._guest is not None and self._hits().get("memory", 0) > self._seen_hits.get(
                "memory", 0
            ):
                error = Exhausted(
                    "the sandbox ran out of memory and was ended; raise Limits(memory=)",
                    limit="memory",
                )
            self._over = error
        if self._stopping is None and self._guest is not None:
            self._stopping = asyncio.get_running_loop().create_task(self._destroy())

    def _hits(self) -> dict[str, int]:
        return {} if self._guest is None else dict(self._guest.limit_hits())

    def _account(self, exited: Exited) -> Reason:
        """Say why a process ended, from what the kernel counted since the last that ended badly."""
        if exited.signal == 0 and exited.code == 0:
            return Reason.EXIT
        hits = self._hits()
        fresh = {name for name, count in hits.items() if count > self._seen_hits.get(name, 0)}
        self._seen_hits = hits
        # 137 is how a shell passes on that its child was killed.
        if "memory" in fresh and (exited.signal == _SIGKILL or exited.code != 0):
            return Reason.MEMORY
        if "pids" in fresh:
            return Reason.PIDS
        if exited.disk_full:
            return Reason.DISK
        return Reason.SIGNAL if exited.signal else Reason.EXIT

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


async def _feed(process: Process, data: bytes) -> None:
    """Write standard input; a program that does not read all of it is not an error."""
    if process.stdin is None:
        return
    try:
        await process.stdin.write(data)
    except GuestGone:
        return
    process.stdin.close()
