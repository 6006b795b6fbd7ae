"""Why a process ended, from what the kernel counted for its sandbox."""

from __future__ import annotations

from collections.abc import Callable

from cloister.errors import CloisterError, Exhausted
from cloister.model import Reason
from cloister.runtime.base import Guest
from cloister.wire import Exited

_SIGKILL = 9


class Accounts:
    """Remembers which hits of the limits have been told already."""

    def __init__(self, guest: Callable[[], Guest | None], disk_full: Callable[[], bool]) -> None:
        self._guest = guest
        self._disk_full = disk_full
        self._seen: dict[str, int] = {}
        # How often a guest said that a limit was reached which only its own kernel counts.
        self.told_inside: dict[str, int] = {}
        # What a guest said of that at the end of a program that ended well: it was another's.
        self._of_others: set[str] = set()
        # Told of each limit that was reached, and how often since it was told last.
        self.on_hit: Callable[[str, int], None] | None = None

    def renew(self) -> None:
        """Another guest counts from nothing."""
        self._seen = {}
        self._of_others = set()

    def why(self, exited: Exited) -> Reason:
        """Say why a process ended, from what was counted since the last that ended badly."""
        for name in exited.hits:
            self.told_inside[name] = self.told_inside.get(name, 0) + 1
            if self.on_hit is not None:
                self.on_hit(name, 1)
        if exited.signal == 0 and exited.code == 0:
            self._of_others.update(exited.hits)
            return Reason.EXIT
        fresh = self.look().union(exited.hits, self._of_others)
        self._of_others = set()
        # 137 is how a shell passes on that its child was killed.
        if "memory" in fresh and (exited.signal == _SIGKILL or exited.code != 0):
            return Reason.MEMORY
        if "pids" in fresh:
            return Reason.PIDS
        if exited.disk_full or self._disk_full():
            return Reason.DISK
        return Reason.SIGNAL if exited.signal else Reason.EXIT

    def look(self) -> set[str]:
        """Return the limits that were reached since the last look."""
        hits, seen = self._hits(), self._seen
        fresh = {name: count - seen.get(name, 0) for name, count in hits.items()}
        self._seen = hits
        if self.on_hit is not None:
            for name, count in fresh.items():
                if count > 0:
                    self.on_hit(name, count)
        return {name for name, count in fresh.items() if count > 0}

    def why_lost(self, error: CloisterError) -> CloisterError:
        """Return the true reason for the end of the guest, where it is another than the given."""
        if self._hits().get("memory", 0) > self._seen.get("memory", 0):
            return Exhausted(
                "the sandbox ran out of memory and was ended; raise Limits(memory=)",
                limit="memory",
            )
        if self._hits().get("pids", 0) > self._seen.get("pids", 0):
            return Exhausted(
                "the sandbox had too many processes and was ended; raise Limits(pids=)",
                limit="pids",
            )
        return error

    def _hits(self) -> dict[str, int]:
        guest = self._guest()
        return {} if guest is None else dict(guest.limit_hits())
