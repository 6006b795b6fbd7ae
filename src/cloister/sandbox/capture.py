"""Keeps the beginning of a stream up to a limit, and goes on reading so that nobody is held up."""

from __future__ import annotations

import asyncio

from cloister.wire import PipeIncoming, WireIncoming


class Capture:
    """Collects a stream, in the background once told to begin, else when it is waited for."""

    def __init__(self, stream: PipeIncoming | WireIncoming, limit: int) -> None:
        self.total = 0
        self._stream = stream
        self._limit = limit
        self._parts: list[bytes] = []
        self._held = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def kept(self) -> bytes:
        """What was kept."""
        return b"".join(self._parts)

    @property
    def truncated(self) -> bool:
        """Whether there was more than was kept."""
        return self.total > self._held

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing to wait for: nobody collects, and nothing will come."""
        return self._task is None and self._stream.exhausted

    def begin(self) -> None:
        """Start collecting."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._collect())

    async def _collect(self) -> None:
        while chunk := await self._stream.read():
            self.total += len(chunk)
            room = self._limit - self._held
            if room > 0:
                part = chunk[:room]
                self._parts.append(part)
                self._held += len(part)

    async def wait(self) -> None:
        """Wait for the end of the stream."""
        if self._task is not None:
            await self._task
        elif not self._stream.exhausted:
            await self._collect()

    def abandon(self) -> None:
        """Stop collecting."""
        if self._task is not None:
            self._task.cancel()
