"""Counts entries that could not be written, until one gets through that says so."""

from __future__ import annotations

import errno

from cloister.errors import CloisterError, Exhausted, HostError
from cloister.ledger.keeping import Lost
from cloister.ledger.shelf import ShortWrite

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Losses:
    """What was lost since the last entry that told of a loss, and in all."""

    def __init__(self) -> None:
        self.total = 0
        self._count = 0
        self._first_ns = 0
        self._last_ns = 0
        self._reason = ""

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, error: CloisterError, time_ns: int, count: int = 1) -> None:
        """Count entries that this error kept from being written."""
        if not self._count:
            self._first_ns = time_ns
        self._last_ns = time_ns
        self._count += count
        self.total += count
        self._reason = str(error)

    def entry(self) -> Lost:
        """Return the entry that tells of them."""
        return Lost(self._count, self._first_ns, self._last_ns, self._reason)

    def told(self) -> None:
        """The entry was written."""
        self._count = 0


def explain(error: Exception) -> CloisterError:
    """Return why an entry could not be written, as one of our errors."""
    if isinstance(error, ShortWrite) or (isinstance(error, OSError) and error.errno in _NO_ROOM):
        return Exhausted(
            "the ledger's disk is full; free some space below the state directory", limit="disk"
        )
    if isinstance(error, CloisterError):
        return error
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return HostError(f"the ledger cannot be written: {reason}")
