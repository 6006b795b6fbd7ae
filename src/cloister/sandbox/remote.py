"""A sandbox on a server, used as one that is here: what is asked of it is asked over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket as sockets
import weakref
from base64 import b64encode
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

from cloister.errors import (
    CloisterError,
    GuestGone,
    NotFound,
    RequestError,
    Unsupported,
)
from cloister.model import (
    UNLIMITED,
    MountMode,
    Result,
    SandboxId,
    SandboxUsage,
    User,
    parse_bytes,
    parse_command,
    parse_cwd,
    parse_duration,
    parse_env,
    parse_user,
    quote,
)
from cloister.policy import Egress, Policy, read_policy
from cloister.remote import Client, server_place
from cloister.remote.heartbeat import LEASE_S, heartbeat
from cloister.sandbox.fork import Forks, require_count
from cloister.sandbox.process import require_terminal_size
from cloister.sandbox.remote_dial import DIAL_BYTES, begin_carrying
from cloister.sandbox.remote_files import RemoteFiles
from cloister.sandbox.remote_process import RemoteProcess, feed_and_capture, read_result
from cloister.sandbox.remote_spec import spec_of
from cloister.sandbox.remote_state import RemoteDifferences, read_snapshot, which
from cloister.sandbox.sandbox import WORKSPACE, Sandbox

if TYPE_CHECKING:
    from cloister.model.traffic import Traffic
    from cloister.sandbox.process import Process
    from cloister.store import Snapshot

# More input than this is sent while the program reads it; a request is read whole before it begins.
_MOST_INPUT_BYTES = 256 * 1024


class RemoteSandbox(Sandbox):
    """A sandbox of a server; `Sandbox(...)` makes one where CLOISTER_URL names a server."""

    _is_elsewhere = True

    def __init__(self, policy: Policy | None = None, **settings: Any) -> None:
        super().__init__(policy, **settings)
        place = server_place()
        if place is None:
            raise RequestError("CLOISTER_URL names no server")
        self._at = place
        self._spec = _leased(spec_of(self.policy, policy, settings))
        self._copies = [each for each in self.policy.mounts if each.mode is MountMode.COPY]
        self._fork_of: str | None = None
        self._is_open = False
        self._was_reopened = False
        self._is_held = False
        self._started: weakref.WeakSet[RemoteProcess] = weakref.WeakSet()
        self._carrying: set[asyncio.Task[None]] = set()
        self.files = RemoteFiles(self)

    @property
    def client(self) -> Client:
        """What talks to the server."""
        return Client.of(self._at)

    @property
    def place(self) -> str:
        """Where it is on the server; an error unless it is running."""
        if self._over is not None:
            raise self._over
        if not self._is_open:
            raise RequestError("this sandbox is not started; use `async with` or await open()")
        return f"/v1/sandboxes/{self.id}"

    async def open(self) -> Self:
        """Start the sandbox. Nothing of it exists if this raises."""
        if self._is_open or self._over is not None:
            raise RequestError("this sandbox has been started before; make another one")
        if self._fork_of is None:
            found = await self.client.ask("POST", "/v1/sandboxes", self._spec)
        else:
            body = {"count": 1, "sandbox": self._spec}
            path = f"/v1/snapshots/{self._fork_of}/fork"
            (found,) = (await self.client.ask("POST", path, body))["sandboxes"]
        return await self._opened(found)

    @classmethod
    async def attached(cls, found: dict[str, Any]) -> Self:
        """Return a sandbox that runs on the server already, from what the server says of it."""
        return await cls()._opened(found)

    async def _opened(self, found: dict[str, Any]) -> Self:
        self.id = SandboxId(found["id"])
        policy = read_policy(found["policy"], "policy of the server")
        self.adopt(policy, {}, found.get("working_directory", WORKSPACE))
        self._was_reopened = found.get("reopened", False)
        self._is_open = True
        if "lease" in self._spec:
            heartbeat(self._at).add(self)
        try:
            for mount in self._copies:
                if not self._was_reopened:
                    await self.files.copy_in(mount.source, str(mount.target))
        except BaseException:
            await self.stop()
            raise
        return self

    async def _destroy(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        heartbeat(self._at).remove(self)
        try:
            await self.client.ask("DELETE", f"/v1/sandboxes/{self.id}/running")
        except (NotFound, GuestGone):
            # It ended by itself.
            return
        finally:
            for process in tuple(self._started):
                await process.leave()
            for task in tuple(self._carrying):
                task.cancel()
            await asyncio.gather(*self._carrying, return_exceptions=True)

    def _running(self) -> NoReturn:
        self.place  # noqa: B018
        raise Unsupported("this is on a server; what the host sees of it is not told to clients")

    def enter(self) -> None:
        """Nothing to note here: the server sees what is being done."""
        self.place  # noqa: B018

    def leave(self) -> None:
        """Nothing to note here."""

    @property
    def is_running(self) -> bool:
        """Whether it has been started and has not been ended from here."""
        return self._is_open and self._over is None

    @property
    def is_reopened(self) -> bool:
        """Whether it goes on with what was kept before."""
        return self._was_reopened

    @property
    def is_paused(self) -> bool:
        """Whether every process inside is held still."""
        return self._is_held

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
        """Run a program to its end and return how it ended and what it printed."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        if data is not None and not isinstance(data, bytes | bytearray | memoryview):
            raise RequestError(f"stdin is {quote(stdin)}; write text or bytes")
        if data is not None and len(data) > _MOST_INPUT_BYTES:
            kept = self.policy.limits.output if output is None else parse_bytes(output, "output")
            process = await self.start(
                command, cwd=cwd, env=env, user=user, timeout=timeout, stdin=True
            )
            result = await feed_and_capture(process, bytes(data), kept)
            await self.end_step(command, result)
            return result
        body = _program(command, cwd, env, user)
        if timeout is not None:
            body["timeout"] = _duration(timeout)
        if data is not None:
            body["stdin"] = b64encode(data).decode()
        if output is not None:
            body["output"] = parse_bytes(output, "output")
        return read_result(await self.ask_server("POST", "/run", body))

    async def run_module(
        self,
        module: bytes | os.PathLike[str] | None,
        arguments: Sequence[str] = (),
        **settings: Any,
    ) -> Result:
        """Run a module of this machine's to its end there; takes what a sandbox here takes."""
        from cloister.sandbox.remote_modules import run_module_there

        return await run_module_there(self, module, arguments, **settings)

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
        """Start a program and return it running, with its streams."""
        size = (24, 80) if pty is True else (pty or None)
        if size is not None:
            require_terminal_size(size)
        limit = self.policy.limits.wall if timeout is None else timeout
        body = {
            **_program(command, cwd, env, user),
            "timeout": UNLIMITED if limit is None else _duration(limit),
            "pty": size,
            "stdin": stdin,
        }
        with self.told_gone():
            socket = await self.client.open_socket(f"{self.place}/processes/own")
        process = await RemoteProcess.begin_at(socket, body)
        self._started.add(process)
        return process

    async def ask_server(self, method: str, below: str, value: Any = None, /, **query: Any) -> Any:
        """Ask the server about this sandbox, at a path below its own."""
        with self.told_gone():
            return await self.client.ask(method, self.place + below, value, **query)

    @contextlib.contextmanager
    def told_gone(self) -> Iterator[None]:
        """Say of a sandbox that the server does not know any more that it has ended."""
        try:
            yield
        except NotFound as error:
            if error.what == self.id:
                raise GuestGone("the sandbox has ended", reason="ended") from error
            raise

    async def dial(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a TCP port inside and return the two ends of the connection."""
        if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65_536:
            raise RequestError(f"port {port!r} does not exist; use 1 to 65535")
        with self.told_gone():
            socket = await self.client.open_socket(f"{self.place}/ports/{port}/tcp")
        ours, theirs = sockets.socketpair()
        inner = await asyncio.open_connection(sock=theirs, limit=4 * DIAL_BYTES)
        task = begin_carrying(socket, *inner)
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        return await asyncio.open_connection(sock=ours, limit=4 * DIAL_BYTES)

    async def pause(self) -> None:
        """Stop every process inside; memory stays, no CPU is used."""
        await self.ask_server("POST", "/pause")
        self._is_held = True

    async def resume(self) -> None:
        """Let every process inside continue."""
        await self.ask_server("POST", "/resume")
        self._is_held = False

    async def snapshot(self, name: str | None = None, *, memory: bool = False) -> Snapshot:
        """Save what is on its disk now; programs go on. With a name it is kept until removed."""
        if memory:
            raise Unsupported("the server saves no memory; leave memory out")
        return read_snapshot(await self.ask_server("POST", "/snapshots", {"name": name}))

    async def pause_to_disk(self) -> Snapshot:
        """Refused: the server's sandboxes are paused in its own memory."""
        raise Unsupported("the server saves no memory; use pause()")

    async def snapshots(self) -> tuple[Snapshot, ...]:
        """Return its snapshots and those it came from, oldest first."""
        found = await self.ask_server("GET", "/snapshots")
        return tuple(read_snapshot(each) for each in found["snapshots"])

    async def rewind(self, to: Snapshot | str | int) -> Snapshot:
        """Go back to a snapshot, its name, or the number of a step. Programs inside end."""
        return read_snapshot(await self.ask_server("POST", "/rewind", {"to": which(to)}))

    async def end_step(
        self, command: str | Sequence[str | bytes], result: Result | None = None
    ) -> None:
        """End a step of the history, if there is one."""
        await self.ask_server("POST", "/steps", _program(command, None, None, None))

    def diff(  # type: ignore[override]
        self, below: str = "/", *, since: Snapshot | str | int | None = None
    ) -> RemoteDifferences:
        """Return what changed in one tree since the image, or since a snapshot."""
        return RemoteDifferences(self, below, None if since is None else str(which(since)))

    async def export(
        self, form: str, below: str = "/", since: Snapshot | str | int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield what changed in one tree as a patch or a tar, as the server writes it."""
        query = {"form": form, "below": below, "since": None if since is None else which(since)}
        with self.told_gone():
            async with contextlib.aclosing(
                self.client.stream(f"{self.place}/export", query)
            ) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def usage(self) -> SandboxUsage:
        """Return what the whole sandbox consumes now."""
        found = await self.ask_server("GET", "/usage")
        return SandboxUsage(**{"cpu_s": None, "peak_pids": None, **found})

    async def traffic(self) -> Traffic:
        """Return what it has asked of the network, and what came of it."""
        from cloister.model.traffic import Traffic, TrafficEvent

        found = await self.ask_server("GET", "/traffic")
        return Traffic(tuple(TrafficEvent(**each) for each in found["events"]), found["lost"])

    async def update_egress(self, egress: Egress | Sequence[str]) -> None:
        """Replace what may be reached, from now on; what is open is cut, and is judged anew."""
        wanted = egress if isinstance(egress, Egress) else Egress(egress)
        await self.ask_server("PUT", "/egress", wanted.as_dict())

    async def renew_secrets(self) -> None:
        """Have the server read all secrets from their sources again."""
        await self.ask_server("POST", "/secrets/renew")

    async def wait_ended(self) -> None:
        """Wait until it has ended, whoever ends it."""
        while self._is_open:
            try:
                if (await self.ask_server("GET", "/end", wait=30))["ended"]:
                    return
            except CloisterError:
                return

    @classmethod
    def fork(
        cls, snapshot: Snapshot | str, count: int = 1, *, grants: bool = False, **changes: Any
    ) -> Forks[Self]:
        """Return new sandboxes from a snapshot: `await` it, or `async with` it to end them too."""
        if grants:
            raise Unsupported("on a server a fork is granted nothing by itself; name what it needs")

        async def start() -> list[Self]:
            place = server_place()
            if place is None:
                raise RequestError("CLOISTER_URL names no server")
            spec = _leased(spec_of(Policy(), None, changes))
            body = {"count": require_count(count), "sandbox": spec}
            path = f"/v1/snapshots/{which(snapshot)}/fork"
            found = await Client.of(place).ask("POST", path, body)
            forks = [cls(**changes) for _ in found["sandboxes"]]
            opened = zip(forks, found["sandboxes"], strict=True)
            return [await fork._opened(each) for fork, each in opened]

        return Forks(start)


def _leased(spec: dict[str, Any]) -> dict[str, Any]:
    """Have the server end a sandbox whose client was killed; what is kept is for the next one."""
    return spec if "keep" in spec else {**spec, "lease": LEASE_S}


def _program(
    command: str | Sequence[str | bytes],
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str] | None,
    user: str | int | User | None,
) -> dict[str, Any]:
    argv = parse_command(command)
    body: dict[str, Any] = {"argv": [b64encode(part).decode() for part in argv]}
    if cwd is not None:
        body["cwd"] = parse_cwd(os.fspath(cwd))
    if env is not None:
        body["env"] = parse_env(env)
    if user is not None:
        who = parse_user(user)
        body["user"] = f"{who.uid}:{who.gid}"
    return body


def _duration(value: float | str) -> float | str:
    return UNLIMITED if value == UNLIMITED else parse_duration(value, "timeout")
