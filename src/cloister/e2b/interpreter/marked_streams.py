"""What a session prints, cell by cell: a mark that nobody can guess ends each one's output."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import secrets
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

from cloister.e2b.interpreter.kernel import MAXIMUM_FRAME_BYTES, Frame
from cloister.errors import CloisterError, GuestError, ProtocolViolation
from cloister.sandbox import Process
from cloister.wire.streams import Incoming

# How long the rest of a line that was begun is waited for, and how much of it.
_REST_S = 0.02
_MOST_LINE = 64 * 1024
# Makes the line that a program reads a cell from, with a mark in it.
LineMaker = Callable[[str], bytes]


class MarkedStreams:
    """Both streams of a session that is a program.

    After the mark comes the rest of a line: an object is a frame, anything else is the status with
    which the cell ended; a stream that says the mark and a status is done with the cell.
    """

    def __init__(self, process: Process, hand_over: Callable[[bytes], Awaitable[None]]) -> None:
        self._process = process
        self._hand_over = hand_over
        self._mark = b""
        # How many streams are not done with the cell yet.
        self._left = 0
        self._frames: asyncio.Queue[Frame | CloisterError] = asyncio.Queue(maxsize=256)
        self._reading: list[asyncio.Future[None]] = []
        for stream, kind in ((process.stdout, "stdout"), (process.stderr, "stderr")):
            if stream is not None:
                self._reading.append(asyncio.ensure_future(self._follow(stream, kind)))

    async def begin(self, make_line: LineMaker) -> None:
        """Begin a cell: hand the program the line that is made with a new mark."""
        self._left = len(self._reading)
        mark = secrets.token_hex(16)
        self._mark = mark.encode()
        if self._process.returncode is not None:
            raise _ended()
        await self._hand_over(make_line(mark))

    async def until_end(self) -> AsyncGenerator[Frame, None]:
        """Yield what is printed up to the end of the cell, and the statuses it ends with."""
        after: Frame | CloisterError | None = None
        while self._left:
            frame = await self._frames.get() if after is None else after
            if isinstance(frame, CloisterError):
                raise frame
            frame, after = await self._whole_line(frame)
            self._left -= frame["type"] == "status"
            yield frame

    async def _whole_line(self, frame: Frame) -> tuple[Frame, Frame | CloisterError | None]:
        """Return a piece of output with the rest of its line, and what was read after it.

        R writes the pieces of a line one by one; its own clients hear of lines.
        """
        while frame["type"] in ("stdout", "stderr") and not frame["text"].endswith("\n"):
            if len(frame["text"]) > _MOST_LINE:
                break
            try:
                async with asyncio.timeout(_REST_S):
                    after = await self._frames.get()
            except TimeoutError:
                break
            if isinstance(after, CloisterError) or after["type"] != frame["type"]:
                return frame, after
            frame = {**frame, "text": frame["text"] + after["text"]}
        return frame, None

    async def settle(self, timeout_s: float) -> bool:
        """Wait for the end of what was interrupted; whether it came."""
        with contextlib.suppress(TimeoutError, GuestError):
            async with asyncio.timeout(timeout_s):
                async for _ in self.until_end():
                    continue
                return True
        return False

    async def close(self) -> None:
        """Listen no more."""
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)

    async def _follow(self, stream: Incoming, kind: str) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        held = bytearray()
        error: CloisterError = _ended()
        try:
            async for chunk in stream:
                held += chunk
                while held:
                    mark = self._mark
                    at = held.find(mark) if mark else -1
                    before = len(held) - _overlap(held, mark) if at < 0 else at
                    await self._tell(kind, decoder.decode(bytes(held[:before])))
                    del held[:before]
                    end = -1 if at < 0 else held.find(b"\n", max(len(mark), len(held) - len(chunk)))
                    if end < 0:
                        _require_bounded(held)
                        break
                    await self._frames.put(_frame(bytes(held[len(mark) : end])))
                    del held[: end + 1]
        except CloisterError as lost:
            error = lost if isinstance(lost, ProtocolViolation) else error
        await self._frames.put(error)

    async def _tell(self, kind: str, text: str) -> None:
        if text:
            await self._frames.put({"type": kind, "text": text, "at": time.time()})


class MarkedKernel:
    """What every session has that is a program whose streams are marked."""

    _process: Process
    _streams: MarkedStreams

    async def interrupt(self) -> None:
        """Stop what runs."""
        with contextlib.suppress(CloisterError):
            self._process.signal(signal.SIGINT)

    async def settle(self, timeout_s: float) -> bool:
        """Wait for the end of what was interrupted; whether it came."""
        return await self._streams.settle(timeout_s)

    async def close(self) -> None:
        """End it and everything it started."""
        await self._streams.close()
        await self._process.stop()


def _overlap(held: bytearray, mark: bytes) -> int:
    """Return how many bytes at the end can be the beginning of the mark."""
    longest = min(len(held), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if held.endswith(mark[:n])), 0)


def _require_bounded(held: bytearray) -> None:
    if len(held) > MAXIMUM_FRAME_BYTES:
        raise ProtocolViolation(
            f"a kernel sends {len(held)} bytes at once; the most is {MAXIMUM_FRAME_BYTES}"
        )


def _frame(line: bytes) -> Frame:
    if not line.startswith(b"{"):
        return {"type": "status", "status": line.decode("ascii", "replace").strip()[:8]}
    try:
        frame = json.loads(line)
    except (ValueError, RecursionError):
        raise ProtocolViolation("a kernel sends something other than JSON") from None
    if not isinstance(frame, dict) or frame.get("type") in (None, "status"):
        raise ProtocolViolation("a kernel sends something other than a frame")
    return frame


def _ended() -> GuestError:
    return GuestError("the session has ended; restart it")
