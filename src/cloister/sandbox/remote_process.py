"""A program that runs in a sandbox of a server: its streams and its end over one WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import json
from base64 import b64decode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cloister.errors import CloisterError, GuestGone, RequestError
from cloister.model import Reason, Result, Usage
from cloister.remote.client import problem_error
from cloister.sandbox.capture import Capture
from cloister.sandbox.process import Process, require_terminal_size
from cloister.wire.streams import Chunks

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_STDOUT, _STDERR = 1, 2
# As much input may be under way as the server lets wait.
_CREDIT_BYTES = 512 * 1024
_PIECE_BYTES = 64 * 1024


def read_result(found: dict[str, Any]) -> Result:
    """Return the result that a server told."""
    return Result(
        exit_code=found["exit_code"],
        signal=found["signal"],
        reason=Reason(found["reason"]),
        stdout_bytes=b64decode(found["stdout"]),
        stderr_bytes=b64decode(found["stderr"]),
        stdout_truncated=found["stdout_truncated"],
        stderr_truncated=found["stderr_truncated"],
        stdout_total=found["stdout_total"],
        stderr_total=found["stderr_total"],
        wall_s=found["wall_s"],
        usage=Usage(**found["usage"]),
    )


async def feed_and_capture(process: Process, data: bytes, limit: int) -> Result:
    """Give a program all of its input while its output is read, and return how it ended."""
    feeding = asyncio.create_task(_feed(process, data))
    try:
        return await process.capture(limit)
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        await process.stop()


async def _feed(process: Process, data: bytes) -> None:
    if process.stdin is not None:
        # A program need not read its input.
        with contextlib.suppress(GuestGone):
            await process.stdin.write(data)
        process.stdin.close()


class RemoteIncoming(Chunks):
    """Output that comes over the WebSocket; the server waits for what is not read."""

    def __init__(self, on_read: Callable[[int], None]) -> None:
        super().__init__()
        self._on_read = on_read

    def feed(self, data: bytes) -> None:
        """Some output came."""
        self._put(data)

    def finish(self) -> None:
        """No more will come."""
        self._end()

    def close(self) -> None:
        """Give up; what was not read is lost."""
        self._chunks.clear()
        self._end()

    def _taken(self, count: int) -> None:
        self._on_read(count)


class RemoteOutgoing:
    """Standard input, sent as far as the server takes it."""

    def __init__(self, socket: ClientConnection, tell: Callable[[dict[str, Any]], None]) -> None:
        self._socket = socket
        self._tell = tell
        self._under_way = 0
        self._is_lost = False
        self._is_closed = False
        self._news = asyncio.Event()

    async def write(self, data: bytes) -> None:
        """Hand over all of `data`, waiting for room."""
        view = memoryview(bytes(data))
        for at in range(0, len(view), _PIECE_BYTES):
            piece = bytes(view[at : at + _PIECE_BYTES])
            while self._under_way >= _CREDIT_BYTES and not self._is_lost:
                self._news.clear()
                await self._news.wait()
            if self._is_lost or self._is_closed:
                raise GuestGone("nobody reads this stream any more", reason="closed")
            self._under_way += len(piece)
            try:
                await self._socket.send(piece)
            except Exception as error:
                raise GuestGone("the connection to the server is gone", reason="lost") from error

    def taken(self, count: int, lost: bool) -> None:
        """The server passed some of it on, or knows that nobody reads."""
        self._under_way -= count
        self._is_lost = self._is_lost or lost
        self._news.set()

    def lose(self) -> None:
        """Nobody reads any more."""
        self.taken(0, True)

    def close(self) -> None:
        """Say that no more will come."""
        if not self._is_closed:
            self._is_closed = True
            self._tell({"stdin_closed": True})


class RemoteProcess(Process):
    """A program running in a sandbox of a server. Made by `Sandbox.start`."""

    def __init__(self, socket: ClientConnection, *, stdin: bool, pty: bool) -> None:
        # Nothing of a local process is there; what is public is all below.
        self.pid = None
        self._socket = socket
        self._has_terminal = pty
        self.stdout = RemoteIncoming(lambda count: self._tell({"read": [_STDOUT, count]}))  # type: ignore[assignment]
        self.stderr = (
            None if pty else RemoteIncoming(lambda count: self._tell({"read": [_STDERR, count]}))  # type: ignore[assignment]
        )
        self.stdin = RemoteOutgoing(socket, self._tell) if stdin or pty else None
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # type: ignore[assignment]
        self._result_told: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._orders: asyncio.Queue[str] = asyncio.Queue()
        self._tasks = [
            asyncio.create_task(self._listen()),
            asyncio.create_task(self._send_orders()),
        ]

    @classmethod
    async def begin_at(cls, socket: ClientConnection, start: dict[str, Any]) -> RemoteProcess:
        """Start what is asked for, and return it running."""
        process = cls(socket, stdin=start["stdin"], pty=start["pty"] is not None)
        try:
            await socket.send(json.dumps(start))
            await process._begun
        except BaseException:
            await process.leave()
            raise
        return process

    def _tell(self, order: dict[str, Any]) -> None:
        self._orders.put_nowait(json.dumps(order))

    async def _send_orders(self) -> None:
        from websockets.exceptions import ConnectionClosed

        # Whoever listens hears of the end, and tells everybody.
        with contextlib.suppress(ConnectionClosed, OSError):
            while True:
                await self._socket.send(await self._orders.get())

    async def _listen(self) -> None:
        lost: CloisterError = GuestGone("the connection to the server is gone", reason="lost")
        try:
            async for message in self._socket:
                if isinstance(message, bytes):
                    self._stream(message[0]).feed(message[1:])
                else:
                    self._hear(json.loads(message))
        except (OSError, ValueError, KeyError, IndexError) as error:
            lost = GuestGone(f"the server said what means nothing: {error}", reason="lost")
        except Exception as error:
            lost = GuestGone(f"the connection to the server is gone: {error}", reason="lost")
        finally:
            self._over(lost)

    def _stream(self, name: int) -> RemoteIncoming:
        stream: Any = self.stdout if name == _STDOUT else self.stderr
        if stream is None:
            raise ValueError("output of a stream that there is not")
        found: RemoteIncoming = stream
        return found

    def _hear(self, said: dict[str, Any]) -> None:
        if "started" in said:
            self.pid = said["started"]["pid"]
            _settle(self._begun, None)
        if "taken" in said and isinstance(self.stdin, RemoteOutgoing):
            self.stdin.taken(said["taken"], said["lost"])
        if "stream_ended" in said:
            self._stream(said["stream_ended"]).finish()
        if "ended" in said:
            _settle(self._result_told, read_result(said["ended"]))
            if isinstance(self.stdin, RemoteOutgoing):
                self.stdin.lose()
        if "error" in said:
            self._over(problem_error(said["error"]))

    def _over(self, error: CloisterError) -> None:
        for future in (self._begun, self._result_told):
            if not future.done():
                future.set_exception(error)
                future.exception()
        if isinstance(self.stdin, RemoteOutgoing):
            self.stdin.lose()
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.finish()

    @property
    def returncode(self) -> int | None:
        """The exit code once it has ended, 128 + number after a signal; None while it runs."""
        told = self._result_told
        if not told.done() or told.exception() is not None:
            return None
        return told.result().exit_code

    async def wait(self) -> Result:
        """Wait for the end. Output not read from the streams by then is not in the result."""
        return await asyncio.shield(self._result_told)

    async def capture(self, limit: int) -> Result:
        """Read all output, keep up to `limit` bytes of each stream, and wait for the end."""
        out = Capture(self.stdout, limit)
        err = None if self.stderr is None else Capture(self.stderr, limit)
        captures = (out,) if err is None else (out, err)
        for each in captures:
            each.begin()
        try:
            told = await self.wait()
            for each in captures:
                await each.wait()
        except BaseException:
            for each in captures:
                each.abandon()
            raise
        return Result(
            exit_code=told.exit_code,
            signal=told.signal,
            reason=told.reason,
            stdout_bytes=out.kept,
            stderr_bytes=b"" if err is None else err.kept,
            stdout_truncated=out.truncated,
            stderr_truncated=False if err is None else err.truncated,
            stdout_total=out.total,
            stderr_total=0 if err is None else err.total,
            wall_s=told.wall_s,
            usage=told.usage,
        )

    def signal(self, number: int, *, whole_group: bool = True) -> None:
        """Send a signal to the program's process group, or to the program alone."""
        if not 0 < number <= 64:
            raise RequestError(f"signal {number} does not exist; use 1 to 64, or signal.SIGTERM")
        self._tell({"signal": int(number), "whole_group": whole_group})

    def kill(self) -> None:
        """End the program and everything it started. Its result says it was cancelled."""
        self._tell({"kill": True})

    def resize(self, rows: int, cols: int) -> None:
        """Tell the program that its terminal has another size."""
        if not self._has_terminal:
            raise RequestError("this process has no terminal; start it with pty=")
        require_terminal_size((rows, cols))
        self._tell({"resize": [rows, cols]})

    async def stop(self) -> None:
        """End the whole tree and wait."""
        if not self._result_told.done():
            self.kill()
            with contextlib.suppress(CloisterError):
                await self.wait()
        await self.leave()

    async def leave(self) -> None:
        """Let go of the connection."""
        await self._socket.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)
