"""A kernel that runs inside a sandbox, as the host talks to it: code in, frames out."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Protocol

from cloister.e2b.refusal import CallRefused
from cloister.errors import GuestError, ProtocolViolation
from cloister.sandbox import Process

Frame = dict[str, Any]

# One picture or table; a kernel that sends more is a hostile one.
MAXIMUM_FRAME_BYTES = 32 * 2**20


class Kernel(Protocol):
    """One session of code in some language."""

    def execute(self, code: str, variables: Mapping[str, str]) -> AsyncGenerator[Frame, None]:
        """Run a cell; yield what comes of it, the last being `end_of_execution`."""

    async def interrupt(self) -> None:
        """Stop what runs; the session goes on."""

    async def settle(self, timeout_s: float) -> bool:
        """Wait for the end of what was interrupted; whether it came."""

    async def close(self) -> None:
        """End the session and everything it started."""


class Conversation:
    """Frames over a connection into the sandbox: a length of four bytes, and JSON."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one frame."""
        body = json.dumps(message).encode()
        self._writer.write(len(body).to_bytes(4, "big") + body)
        await self._writer.drain()

    async def receive(self) -> Frame:
        """Return the next frame; every byte of it is the guest's choice."""
        try:
            length = int.from_bytes(await self._reader.readexactly(4), "big")
            if length > MAXIMUM_FRAME_BYTES:
                raise ProtocolViolation(
                    f"a kernel sends {length} bytes at once; the most is {MAXIMUM_FRAME_BYTES}"
                )
            body = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            raise GuestError("the kernel has ended; restart its session") from None
        try:
            frame = json.loads(body)
        except (ValueError, RecursionError):
            raise ProtocolViolation("a kernel sends something other than JSON") from None
        if not isinstance(frame, dict):
            raise ProtocolViolation("a kernel sends something other than an object")
        return frame

    async def until_end(self) -> AsyncGenerator[Frame, None]:
        """Yield frames up to and with the end of the execution."""
        while True:
            frame = await self.receive()
            yield frame
            if frame.get("type") == "end_of_execution":
                return

    async def settle(self, timeout_s: float) -> bool:
        """Read on to the end of an execution that nobody listens to; whether it came."""
        with contextlib.suppress(TimeoutError, GuestError):
            async with asyncio.timeout(timeout_s):
                async for _ in self.until_end():
                    continue
                return True
        return False

    def close(self) -> None:
        """Leave; the kernel ends by that."""
        self._writer.close()


@contextlib.asynccontextmanager
async def getting_ready(process: Process, ready_s: float) -> AsyncIterator[None]:
    """Wait for a kernel in the block; one that is not ready in time, or fails, is ended."""
    try:
        async with asyncio.timeout(ready_s):
            yield
    except TimeoutError:
        await process.stop()
        raise GuestError(f"the kernel was not ready within {ready_s:g} s") from None
    except BaseException:
        await process.stop()
        raise


def unavailable(language: str, why: str) -> CallRefused:
    """Return why there is no kernel of a language here."""
    return CallRefused("unimplemented", f"no kernel for {language}: {why}")
