"""The launcher process: started once from a sealed copy of the binary, told plans, watched."""

from __future__ import annotations

import asyncio
import errno as errno_names
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import CloisterError, HostError, LaunchFailed, RuntimeGone
from cloister.runtime.doors import close_all
from cloister.runtime.namespace.cgroups import Layout
from cloister.runtime.namespace.hints import hint_for
from cloister.runtime.namespace.ids import SubIds
from cloister.runtime.namespace.outbox import Outbox
from cloister.runtime.namespace.rootfs import PUBLIC_ETC, synthetic_files
from cloister.wire import Reader, Writer

_CONFIGURE, _LAUNCH, _DESTROY, _FREEZE = range(1, 5)
_AWAKE, _READY, _LAUNCHED, _FAILED, _GONE, _FROZEN = range(32, 38)
_MAX_REPLY = 16 * 1024
_MAX_FDS = 8
_START_TIMEOUT_S = 30.0
_MAX_STDERR = 4096
_LAST_WORDS_S = 2.0


@dataclass(frozen=True, slots=True)
class Launched:
    """A guest has been cloned: its host process number, and the number of its control groups.

    `doors` are the sockets of its way out, ours to close.
    """

    pid: int
    group: int
    doors: tuple[int, ...] = ()


class Launcher:
    """One launcher process and what is asked of it."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.landlock_version = 0
        self.pid = process.pid
        self.on_gone: Callable[[int], None] = lambda number: None
        self._process = process
        self._socket = control
        self._loop = asyncio.get_running_loop()
        self._awake: asyncio.Future[None] = self._loop.create_future()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._launching: dict[int, Callable[[CloisterError], None]] = {}
        self._launched: dict[int, Launched] = {}
        self._awaited: dict[int, asyncio.Future[Launched]] = {}
        self._ending: dict[int, list[asyncio.Future[None]]] = {}
        self._freezing: dict[int, asyncio.Future[int]] = {}
        self._alive: set[int] = set()
        self._error: CloisterError | None = None
        control.setblocking(False)
        self._outbox = Outbox(control, self._loop, self._lose)
        self._loop.add_reader(control.fileno(), self._readable)

    @classmethod
    async def start(
        cls,
        binary: Path,
        *,
        keep: Sequence[int] = (),
        through: Sequence[str] = (),
    ) -> Launcher:
        """Start a launcher; it can do nothing yet.

        `keep` are lock descriptors it holds as long as it lives; `through` is a command that
        starts it elsewhere (in a delegated scope).
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        image = _sealed_copy(binary)
        try:
            # An empty environment: what is not in its memory cannot be taken from it.
            process = subprocess.Popen(
                [*through, f"/proc/self/fd/{image}", "zygote", str(theirs.fileno())],
                pass_fds=(image, theirs.fileno(), *keep),
                env={} if not through else dict(os.environ),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            ours.close()
            raise HostError(
                f"the launcher could not be started from {binary}: {error}; reinstall Cloister"
            ) from error
        finally:
            os.close(image)
            theirs.close()
        launcher = cls(process, ours)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await launcher._awake
        except BaseException:
            await launcher.close()
            raise
        return launcher

    async def configure(self, directory: Path, sub_ids: SubIds | None, layout: Layout) -> None:
        """Tell it where its private mounts go, whose ids it has, where groups are made."""
        w = Writer().bytes(os.fsencode(directory))
        if os.geteuid() == 0:
            w.u8(0)
        elif sub_ids is not None:
            w.u8(1)
            for ranges in (sub_ids.uids, sub_ids.gids):
                w.list(ranges, lambda w, pair: w.u32(pair[0]).u32(pair[1]))
            w.bytes(sub_ids.uid_helper.encode()).bytes(sub_ids.gid_helper.encode())
        else:
            w.u8(2)
        w.bytes(os.fsencode(directory.name))
        w.list(
            layout.directories(),
            lambda w, path: w.bytes(os.fsencode(path)).flag(path == layout.unified),
        )
        w.list(PUBLIC_ETC, lambda w, name: w.bytes(name.encode()))
        w.list(
            synthetic_files(),
            lambda w, file: w.bytes(file[0].encode()).u32(file[1]).bytes(file[2]),
        )
        self._send(_CONFIGURE, 0, w.done())
        async with asyncio.timeout(_START_TIMEOUT_S):
            await self._ready

    def launch(
        self,
        number: int,
        plan: bytes,
        ends: Sequence[int],
        on_refused: Callable[[CloisterError], None],
    ) -> None:
        """Ask for a plan to be performed; `ends` is the guest's end of its socket.

        With a kernel of its own it is followed by where that says what went wrong.

        That the wall stands the guest says itself; `on_refused` is called if a step of the
        launcher's or the guest's did not apply.
        """
        self._launching[number] = on_refused
        self._alive.add(number)
        self._send(_LAUNCH, number, plan, ends)

    async def launched(self, number: int) -> Launched:
        """Return what the launcher says of a guest; mostly it has said so before the guest has."""
        launched = self._launched.pop(number, None)
        if launched is None:
            waiter = self._awaited[number] = self._loop.create_future()
            try:
                launched = await waiter
            finally:
                del self._awaited[number]
        self._launching.pop(number, None)
        return launched

    def destroy(self, number: int) -> asyncio.Future[None]:
        """End a sandbox; the result comes when the kernel has nothing left of it."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        if number not in self._alive or self._error is not None:
            waiter.set_result(None)
            return waiter
        # One for each who waits: one that gives up must not take it from the others.
        waiting = self._ending.setdefault(number, [])
        waiting.append(waiter)
        if len(waiting) == 1:
            self._send(_DESTROY, number, b"")
        return waiter

    async def freeze(self, number: int, frozen: bool) -> int:
        """Stop or continue everything inside; return 0 or the error number."""
        waiter: asyncio.Future[int] = self._loop.create_future()
        self._freezing[number] = waiter
        self._send(_FREEZE, number, bytes((frozen,)))
        return await waiter

    async def close(self) -> None:
        """Let the launcher end everything it started, and itself; wait until it has."""
        self._fail(RuntimeGone("the launcher was closed"))
        await self._loop.run_in_executor(None, self._process.wait)
        if self._process.stderr is not None:
            self._process.stderr.close()

    def abandon(self) -> None:
        """Close our end without waiting: the launcher cleans up by itself."""
        self._socket.close()

    def _send(self, kind: int, number: int, payload: bytes, fds: Sequence[int] = ()) -> None:
        if self._error is not None:
            raise self._error
        try:
            self._outbox.send(Writer().u8(kind).u64(number).done() + payload, fds)
        except OSError as error:
            self._lose(error)
            if self._error is not None:
                raise self._error from error

    def _lose(self, error: OSError) -> None:
        self._hear_the_rest()
        self._fail(RuntimeGone(f"the launcher is gone: {error}{self._last_words()}"))

    def _hear_the_rest(self) -> None:
        """Take in what it said before it ended: that may be why."""
        with suppress(OSError):
            while packet_and_fds := self._receive():
                self._hear(Reader(packet_and_fds[0]), packet_and_fds[1])

    def _receive(self) -> tuple[bytes, tuple[int, ...]] | None:
        """Return the next packet, or None at the end of them."""
        packet, fds, _, _ = socket.recv_fds(
            self._socket, _MAX_REPLY, _MAX_FDS, socket.MSG_CMSG_CLOEXEC
        )
        return (packet, tuple(fds)) if packet else None

    def _readable(self) -> None:
        # One packet a turn, and no look for another: the loop calls again if there is.
        try:
            received = self._receive()
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        if received is None:
            self._fail(RuntimeGone(f"the launcher ended{self._last_words()}"))
            return
        packet, fds = received
        self._hear(Reader(packet), fds)

    def _hear(self, r: Reader, fds: tuple[int, ...]) -> None:
        kind, number = r.u8(), r.u64()
        if kind == _AWAKE:
            _resolve(self._awake, None)
        elif kind == _READY:
            self.landlock_version = r.u32()
            _resolve(self._ready, None)
        elif kind == _LAUNCHED:
            launched = Launched(r.u32(), r.u64(), fds)
            awaited = self._awaited.get(number)
            if awaited is None:
                self._launched[number] = launched
            elif not awaited.done():
                awaited.set_result(launched)
        elif kind == _FAILED:
            self._failed(number, r.u32(), r.bytes().decode(), r.bytes().decode("utf-8", "replace"))
        elif kind == _GONE:
            self._alive.discard(number)
            self._launching.pop(number, None)
            unclaimed = self._launched.pop(number, None)
            if unclaimed is not None:
                close_all(unclaimed.doors)
            for ending in self._ending.pop(number, ()):
                _resolve(ending, None)
            self.on_gone(number)
        elif kind == _FROZEN:
            freezing = self._freezing.pop(number, None)
            if freezing is not None:
                _resolve(freezing, r.u32())

    def _failed(self, number: int, number_of_error: int, step: str, detail: str) -> None:
        name = errno_names.errorcode.get(number_of_error, str(number_of_error))
        error = LaunchFailed(
            f"launch step {step} did not apply: {detail} ({name}); nothing ran",
            step=step,
            errno=number_of_error,
            hint=hint_for(step, number_of_error),
        )
        on_refused = self._launching.pop(number, None)
        if on_refused is not None:
            if number not in self._launched:
                # Refused before there was a guest: nothing will be reported as gone.
                self._alive.discard(number)
                self.on_gone(number)
            on_refused(error)
        elif not self._ready.done():
            self._ready.set_exception(error)

    def _last_words(self) -> str:
        stderr = self._process.stderr
        try:
            # It has let go of its socket, which only its end does: a moment, and it has said why.
            self._process.wait(_LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            return ""
        if stderr is None:
            return ""
        text = os.read(stderr.fileno(), _MAX_STDERR).decode("utf-8", "replace").strip()
        return f": {text}" if text else f" (exit {self._process.returncode})"

    def _fail(self, error: CloisterError) -> None:
        if self._error is not None:
            return
        self._error = error
        self._loop.remove_reader(self._socket.fileno())
        self._outbox.clear()
        self._socket.close()
        for first in (self._awake, self._ready):
            if not first.done():
                first.set_exception(error)
                first.exception()
        for on_refused in list(self._launching.values()):
            on_refused(error)
        self._launching.clear()
        for awaited in self._awaited.values():
            if not awaited.done():
                awaited.set_exception(error)
        for freezing in self._freezing.values():
            if not freezing.done():
                freezing.set_exception(error)
        # Whatever the launcher started ends with it.
        for waiting in self._ending.values():
            for ending in waiting:
                _resolve(ending, None)
        gone, self._alive = self._alive, set()
        for number in gone:
            self.on_gone(number)

    @property
    def failed(self) -> bool:
        """Whether this launcher can no longer be asked anything."""
        return self._error is not None

    @property
    def error(self) -> CloisterError | None:
        """Why this launcher can no longer be asked anything, if so."""
        return self._error


def _resolve(
    waiter: asyncio.Future[object] | asyncio.Future[None] | asyncio.Future[int], value: object
) -> None:
    if not waiter.done():
        waiter.set_result(value)  # type: ignore[arg-type]


def _sealed_copy(binary: Path) -> int:
    """Return a descriptor of the binary that nobody can write to any more, ourselves included."""
    import fcntl

    fd = os.memfd_create("cell", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(binary, "rb") as source:
        size = os.fstat(source.fileno()).st_size
        at = 0
        while at < size:
            at += os.sendfile(fd, source.fileno(), at, size - at)
    os.fchmod(fd, 0o500)
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd
