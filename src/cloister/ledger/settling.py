"""Lets many waiters for the disk share one wait, off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Settling:
    """Knows up to which entry everything is on the disk; `reached` is told by whoever synced."""

    def __init__(self) -> None:
        self._through = -1
        self._running: asyncio.Future[None] | None = None

    def reached(self, sequence: int) -> None:
        """Everything up to that entry is on the disk."""
        self._through = max(self._through, sequence)

    async def wait(self, sequence: int, sync: Callable[[], None]) -> None:
        """Return when that entry is on the disk; `sync` runs in a thread, one at a time."""
        # A sync that began before the entry was written may not cover it: then there is another.
        while self._through < sequence:
            if self._running is None:
                self._running = asyncio.ensure_future(asyncio.to_thread(sync))
                self._running.add_done_callback(self._ended)
            await asyncio.shield(self._running)

    def _ended(self, running: asyncio.Future[None]) -> None:
        self._running = None
        if not running.cancelled():
            # Whoever waits is told; with nobody left to wait, it must not be reported as unseen.
            running.exception()
