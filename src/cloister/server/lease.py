"""How long a sandbox waits for a client that may have died: renewed by whatever the client asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Lease:
    """Ends something when nobody has asked for it for so many seconds.

    A request that is under way holds it, however long it takes: its connection is watched.
    """

    def __init__(self, seconds: float, lapse: Callable[[], None]) -> None:
        self._seconds = seconds
        self._lapse = lapse
        self._under_way = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self.renew()

    def enter(self) -> None:
        """A request begins."""
        self._under_way += 1
        self._stop_clock()

    def leave(self) -> None:
        """A request is over: from now on the clock runs."""
        self._under_way -= 1
        self.renew()

    def renew(self) -> None:
        """Somebody has asked: the clock begins anew."""
        self._stop_clock()
        if self._under_way == 0 and not self._is_over:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._lapse)

    def end(self) -> None:
        """It matters no more."""
        self._is_over = True
        self._stop_clock()

    def _stop_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
