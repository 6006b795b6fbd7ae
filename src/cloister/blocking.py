"""The same sandbox without `await`: one event loop in a background thread does the work.

>>> from cloister.blocking import Sandbox
>>> with Sandbox() as sandbox:
...     result = sandbox.run("python3 --version")

Every method calls the asynchronous one of the same name; there is no second implementation.
Use it from any thread, also where a loop is running already; a sandbox belongs to the process
that started it and is not carried over a fork.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread
import functools
import os
import socket
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, cast

from cloister.errors import CloisterError, RequestError
from cloister.model import UNLIMITED, Limits, Mount, Profile, SandboxId, Trust, User
from cloister.policy import Policy, Root
from cloister.runtime.base import Posture
from cloister.runtime.plan import Plan
from cloister.sandbox import Change
from cloister.sandbox import files as asynchronous_files
from cloister.sandbox import process as asynchronous_process
from cloister.sandbox import sandbox as asynchronous
from cloister.wire import Outgoing, PipeIncoming, WireIncoming

__all__ = ["Files", "Input", "Output", "Process", "Sandbox"]

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")

_CHUNK = 64 * 1024


class _Loop:
    """The event loop of this process's blocking sandboxes, in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.pid = os.getpid()
        self._thread = threading.Thread(target=self._serve, name="cloister", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def wait(self, work: Awaitable[T]) -> T:
        """Do the work in the loop and return its result; an interrupted caller cancels it."""
        if os.getpid() != self.pid:
            _discard(work)
            raise RequestError(
                "this sandbox belongs to the process that started it; make another one after a fork"
            )
        if threading.current_thread() is self._thread:
            _discard(work)
            raise RequestError(
                "a blocking call from a callback would wait for itself; make it from another thread"
            )
        future = asyncio.run_coroutine_threadsafe(_await(work), self.loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                # Interrupted (Ctrl-C): nobody will take the result, and what it began is undone.
                future.cancel()
                concurrent.futures.wait((future,))
            raise

    def forget(self, work: Coroutine[Any, Any, object]) -> None:
        """Do the work in the loop without waiting for it."""
        if os.getpid() == self.pid and self.loop.is_running():
            asyncio.run_coroutine_threadsafe(work, self.loop)
        else:
            work.close()

    @property
    def is_here(self) -> bool:
        """Whether the caller is the loop's own thread."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """End every sandbox of the loop, and the loop."""
        if os.getpid() != self.pid or not self.loop.is_running():
            return
        # The node ends with the suspended generator it keeps in its loop.
        self.wait(self.loop.shutdown_asyncgens())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _await(work: Awaitable[T]) -> T:
    return await work


def _discard(work: Awaitable[object]) -> None:
    if isinstance(work, Coroutine):
        work.close()


_current: _Loop | None = None
_starting = threading.Lock()


def _loop() -> _Loop:
    global _current
    with _starting:
        if _current is None:
            _current = _Loop()
        return _current


def _forget_after_fork() -> None:
    global _current, _starting
    # The thread did not come along, and a lock that another thread held will never be released.
    _current, _starting = None, threading.Lock()


def _close_at_exit() -> None:
    if _current is not None:
        _current.close()


# Before concurrent.futures, which ends its threads at the same hook and in reverse order: what
# ends a sandbox needs one. An ordinary exit function would come too late.
getattr(threading, "_register_atexit", atexit.register)(_close_at_exit)
os.register_at_fork(after_in_child=_forget_after_fork)


class _Proxy(Protocol):
    @property
    def _inner(self) -> Any: ...
    @property
    def _loop(self) -> _Loop: ...


def _waits(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Proxy, P], T]:
    """Turn an asynchronous method into one that returns when it is done."""

    def call(self: _Proxy, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.wait(method(self._inner, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


def _calls(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[_Proxy, P], T]:
    """Turn a method that must run in the loop's thread into one for any thread."""

    def call(self: _Proxy, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def inside() -> T:
            return method(self._inner, *args, **kwargs)

        return self._loop.wait(inside())

    functools.update_wrapper(call, method)
    return call


def _iterates(
    method: Callable[Concatenate[A, P], AsyncIterator[T]],
) -> Callable[Concatenate[_Proxy, P], Iterator[T]]:
    """Turn an asynchronous generator into an ordinary one."""

    def call(self: _Proxy, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return _iterate(self._loop, method(self._inner, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


def _iterate(loop: _Loop, chunks: AsyncIterator[T]) -> Iterator[T]:
    try:
        while True:
            try:
                yield loop.wait(anext(chunks))
            except StopAsyncIteration:
                return
    finally:
        if isinstance(chunks, AsyncGenerator):
            # A generator dropped unfinished may be collected in any thread, the loop's included.
            if loop.is_here:
                loop.forget(_await(chunks.aclose()))
            else:
                loop.wait(chunks.aclose())


class Output:
    """Bytes from a process: read a chunk at a time, or iterate."""

    def __init__(self, loop: _Loop, inner: PipeIncoming | WireIncoming) -> None:
        self._loop, self._inner = loop, inner

    def read(self) -> bytes:
        """Return the next chunk, or b"" at the end."""
        return self._loop.wait(self._inner.read())

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self.read():
            yield chunk

    def close(self) -> None:
        """Give up; whoever writes finds nobody reading."""
        self._loop.wait(_call(self._inner.close))


class Input:
    """Bytes to a process."""

    def __init__(self, loop: _Loop, inner: Outgoing) -> None:
        self._loop, self._inner = loop, inner

    def write(self, data: bytes) -> None:
        """Hand over all of `data`, waiting for room."""
        self._loop.wait(self._inner.write(data))

    def close(self) -> None:
        """Say that no more will come."""
        self._loop.wait(_call(self._inner.close))


async def _call(function: Callable[[], T]) -> T:
    return function()


class Process:
    """A program running in a sandbox. Made by `Sandbox.start`."""

    def __init__(self, loop: _Loop, inner: asynchronous_process.Process) -> None:
        self._loop, self._inner = loop, inner
        self.pid = inner.pid
        self.stdin = None if inner.stdin is None else Input(loop, inner.stdin)
        self.stdout = Output(loop, inner.stdout)
        self.stderr = None if inner.stderr is None else Output(loop, inner.stderr)

    wait = _waits(asynchronous_process.Process.wait)
    capture = _waits(asynchronous_process.Process.capture)
    stop = _waits(asynchronous_process.Process.stop)
    signal = _calls(asynchronous_process.Process.signal)
    kill = _calls(asynchronous_process.Process.kill)
    resize = _calls(asynchronous_process.Process.resize)

    @property
    def returncode(self) -> int | None:
        """The exit code once it has ended, 128 + number after a signal; None while it runs."""
        return self._inner.returncode


class Files:
    """File operations of one sandbox; `sandbox.files`."""

    def __init__(self, sandbox: Sandbox, inner: asynchronous_files.Files) -> None:
        self._sandbox, self._inner = sandbox, inner

    @property
    def _loop(self) -> _Loop:
        return self._sandbox._loop

    read = _waits(asynchronous_files.Files.read)
    read_text = _waits(asynchronous_files.Files.read_text)
    stream = _iterates(asynchronous_files.Files.stream)
    list = _waits(asynchronous_files.Files.list)
    stat = _waits(asynchronous_files.Files.stat)
    exists = _waits(asynchronous_files.Files.exists)
    make = _waits(asynchronous_files.Files.make)
    move = _waits(asynchronous_files.Files.move)
    remove = _waits(asynchronous_files.Files.remove)
    copy_in = _waits(asynchronous_files.Files.copy_in)
    copy_out = _waits(asynchronous_files.Files.copy_out)
    space = _waits(asynchronous_files.Files.space)

    def write(
        self,
        path: str | os.PathLike[str],
        content: bytes | str | Iterable[bytes],
        *,
        mode: int = 0o644,
        parents: bool = True,
        user: str | int | User | None = None,
    ) -> None:
        """Write a file: complete and new, or not at all. Missing directories are made."""
        given = _content(content)
        self._loop.wait(self._inner.write(path, given, mode=mode, parents=parents, user=user))

    def append(
        self,
        path: str | os.PathLike[str],
        content: bytes | str | Iterable[bytes],
        *,
        user: str | int | User | None = None,
    ) -> None:
        """Add to the end of a file, made if it is not there."""
        self._loop.wait(self._inner.append(path, _content(content), user=user))

    def watch(
        self,
        path: str | os.PathLike[str] = "/workspace",
        *,
        recursive: bool = True,
        ready: threading.Event | None = None,
        user: str | int | User | None = None,
    ) -> Iterator[Change]:
        """Yield changes under a directory until the loop over them ends.

        `ready`, if given, is set once every change from then on will be seen.
        """
        # Both kinds of event are told by set(), and nothing else is done to it inside.
        event = cast("asyncio.Event | None", ready)
        changes = self._inner.watch(path, recursive=recursive, ready=event, user=user)
        return _iterate(self._loop, changes)


def _content(content: bytes | str | Iterable[bytes]) -> bytes | str | AsyncIterable[bytes]:
    """Let the caller's own iterator run outside the loop: it may block, or call us again."""
    if isinstance(content, str | bytes | bytearray | memoryview):
        return cast("bytes | str", content)
    return _from_thread(iter(content))


async def _from_thread(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
        yield chunk


class Sandbox:
    """A complete, safe, offline sandbox; everything it may do more is in its policy.

    Use it as `with Sandbox() as sandbox:`, or `open()` and `stop()` it yourself.
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
        self._inner = asynchronous.Sandbox(
            policy,
            limits=limits,
            mounts=mounts,
            env=env,
            profile=profile,
            trust=trust,
            root=root,
            label=label,
        )
        self._loop = _loop()
        self.files = Files(self, self._inner.files)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def open(self) -> Self:
        """Start the sandbox. Nothing of it exists if this raises."""
        self._loop.wait(self._inner.open())
        return self

    stop = _waits(asynchronous.Sandbox.stop)
    run = _waits(asynchronous.Sandbox.run)
    usage = _waits(asynchronous.Sandbox.usage)
    pause = _waits(asynchronous.Sandbox.pause)
    resume = _waits(asynchronous.Sandbox.resume)

    def start(
        self,
        command: str | Sequence[str | bytes],
        *,
        cwd: str | os.PathLike[str] = asynchronous.WORKSPACE,
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
        started = self._inner.start(
            command, cwd=cwd, env=env, user=user, timeout=timeout, pty=pty, stdin=stdin
        )
        return Process(self._loop, self._loop.wait(started))

    def dial(self, port: int) -> socket.socket:
        """Connect to a TCP port inside and return a connected socket."""
        return self._loop.wait(_dial(self._inner, port))

    @property
    def id(self) -> SandboxId:
        """Its name."""
        return self._inner.id

    @property
    def label(self) -> str | None:
        """What its owner calls it."""
        return self._inner.label

    @property
    def policy(self) -> Policy:
        """What it is and may do."""
        return self._inner.policy

    @property
    def posture(self) -> Posture:
        """What the kernel said was true before anything ran."""
        return self._inner.posture

    @property
    def plan(self) -> Plan:
        """Everything the launcher was told."""
        return self._inner.plan

    @property
    def host_pids(self) -> tuple[int, ...]:
        """Process numbers on the host of everything inside."""
        return self._inner.host_pids

    @property
    def is_running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._inner.is_running


# Connections are carried by tasks that nobody waits for: kept here, or they would be collected.
_carriers: set[asyncio.Task[None]] = set()


async def _dial(sandbox: asynchronous.Sandbox, port: int) -> socket.socket:
    reader, writer = await sandbox.dial(port)
    ours, theirs = socket.socketpair()
    carrier = asyncio.create_task(_carry(theirs, reader, writer))
    _carriers.add(carrier)
    carrier.add_done_callback(_carriers.discard)
    return ours


async def _carry(
    end: socket.socket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Copy both ways until both have ended: the caller's socket is used without the loop."""
    near_reader, near_writer = await asyncio.open_connection(sock=end)
    try:
        await asyncio.gather(_copy(reader, near_writer), _copy(near_reader, writer))
    except (OSError, CloisterError):
        # One side has gone; closing both below is how the other learns of it.
        return
    finally:
        writer.close()
        near_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
