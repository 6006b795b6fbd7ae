"""A guest that lies: it speaks on the other end of a real link, and says what a case wants."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError, Unsupported
from cloister.model import SandboxId, SandboxUsage
from cloister.runtime.base import Posture
from cloister.runtime.plan import Plan
from cloister.sandbox import Sandbox
from cloister.verify.case import NotHeld
from cloister.wire import GENERATION, MAX_TO_GUEST, Assembler, Link, Writer, encode_frame
from cloister.wire.frames import Frame
from cloister.wire.messages import EXITED, HELLO, PONG

_WAIT_S = 10.0


class Impostor:
    """The hostile end. `sandbox` is what a caller of the library holds."""

    def __init__(self, sandbox: Sandbox, link: Link, far: socket.socket) -> None:
        self.sandbox = sandbox
        self.link = link
        self._far = far
        self._loop = asyncio.get_running_loop()
        self._frames: deque[Frame] = deque()
        self._assembler = Assembler(MAX_TO_GUEST)

    async def send(self, data: bytes) -> None:
        """Send any bytes at all; a host that has hung up is not an error."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await self._loop.sock_sendall(self._far, data)

    async def say(self, kind: int, id: int, payload: bytes = b"") -> None:
        """Send one frame."""
        await self.send(encode_frame(kind, id, payload))

    async def greet(self, generation: int = GENERATION) -> None:
        """Say hello, as the first message must."""
        await self.say(HELLO, 0, Writer().u8(generation).bytes(b"").done())

    async def exit(self, id: int, code: int = 0, signal: int = 0) -> None:
        """Claim that a process has ended."""
        payload = Writer().u32(code).u8(signal).u8(0)
        for _ in range(5):
            payload.u64(0)
        await self.say(EXITED, id, payload.u32(1).done())

    async def request(self) -> Frame:
        """Return the host's next request, without descriptors that came with it."""
        while not self._frames:
            data, descriptors = await self._receive()
            for fd in descriptors:
                os.close(fd)
            if not data:
                raise NotHeld("the host hung up where it should have asked something")
            self._frames.extend(self._assembler.feed(data))
        return self._frames.popleft()

    async def wait_hung_up(self) -> bool:
        """Whether the host closes the connection, as it must after a violation."""
        try:
            async with asyncio.timeout(_WAIT_S):
                while (await self._receive())[0]:
                    continue
        except TimeoutError:
            return False
        except ConnectionResetError:
            return True
        return True

    async def _receive(self) -> tuple[bytes, list[int]]:
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._far, 65_536, 8)
            except BlockingIOError:
                await self._wait_readable()
            else:
                return data, descriptors

    async def _wait_readable(self) -> None:
        readable = asyncio.Event()
        self._loop.add_reader(self._far.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(self._far.fileno())

    async def send_descriptor(self, fd: int) -> None:
        """Try to give the host a descriptor it never asked for."""
        socket.send_fds(self._far, [encode_frame(PONG, 2**31, b"")], [fd])


class _LyingGuest:
    """What the sandbox object needs of its guest; nothing of it exists."""

    plan: Plan

    def __init__(self, id: SandboxId, link: Link) -> None:
        self.id = id
        self.link = link
        self.posture = Posture({})
        self.pid = 0
        self.runtime = "namespace"
        self.shares_kernel = True
        self.runs_modules = False
        self.is_alone = True
        self.doors = None
        self.host_pids: tuple[int, ...] = ()
        self.groups: tuple[Path, ...] = ()

    def host_path(self, source: str) -> Path | None:
        return None

    def usage(self) -> SandboxUsage:
        raise Unsupported("an impostor has no control groups")

    def limit_hits(self) -> Mapping[str, int]:
        return {}


@contextlib.asynccontextmanager
async def impostor(*, greets: bool = True, descriptors: bool = False) -> AsyncIterator[Impostor]:
    """A sandbox object whose guest is an impostor, over either transport."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    sandbox = Sandbox()
    link = Link(ours, carries_descriptors=descriptors, on_lost=sandbox._lost)
    sandbox._guest = _LyingGuest(sandbox.id, link)
    far = Impostor(sandbox, link, theirs)
    try:
        if greets:
            await far.greet()
            await link.greeted
        yield far
    finally:
        link.close()
        theirs.close()
        await sandbox.stop()


class Alarms:
    """Collects what would otherwise be printed and forgotten: errors outside any caller."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def hear(self, loop: asyncio.AbstractEventLoop, report: dict[str, Any]) -> None:
        """Take one report of the event loop."""
        self.heard.append(f"{report.get('message')}: {report.get('exception')!r}")


@contextlib.asynccontextmanager
async def no_alarms() -> AsyncIterator[None]:
    """Require that no exception escapes into the event loop within the block."""
    loop, alarms = asyncio.get_running_loop(), Alarms()
    before = loop.get_exception_handler()
    loop.set_exception_handler(alarms.hear)
    try:
        yield
    finally:
        loop.set_exception_handler(before)
    if alarms.heard:
        raise NotHeld(f"an exception escaped into the event loop: {alarms.heard[0]}")


async def outcome_of(work: asyncio.Task[Any]) -> CloisterError | Any:
    """Return what a caller got, or the error it got; anything but a CloisterError is NotHeld."""
    try:
        async with asyncio.timeout(_WAIT_S):
            return await work
    except CloisterError as error:
        return error
    except TimeoutError:
        raise NotHeld(f"a caller was left waiting for more than {_WAIT_S:.0f} s") from None
    except Exception as error:
        raise NotHeld(f"a caller got {type(error).__name__}, which is outside the tree") from error


def resident_bytes() -> int:
    """Return how much memory this process holds now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
