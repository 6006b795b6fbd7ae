"""Counts instead of entries where a guest causes more of them than a disk should hold."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from cloister.ledger.keeping import Folded
from cloister.ledger.payload import Payload
from cloister.ledger.shape import encode_payload

_WINDOW_NS = 1_000_000_000
# Rules have names of the owner's choosing, so there are few; whatever is beyond is one heap.
_MOST_HEAPS = 256
_REST = "the rest"


@dataclass(slots=True)
class _Heap:
    """What is known of the entries folded under one name since the last was written down."""

    first_ns: int
    last_ns: int = 0
    count: int = 0
    refusals: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    digest: Any = field(default_factory=hashlib.sha256)


class Floods:
    """Decides what is folded: refusals above a rate, and everything of a guest above a size."""

    def __init__(self, refusals_per_s: int) -> None:
        self._refusals_per_s = refusals_per_s
        self._window = -1
        self._refused: dict[tuple[str, str], int] = {}
        self._heaps: dict[tuple[str, str], _Heap] = {}
        self._heaps_since_ns = 0
        self.total = 0

    def takes(self, payload: Payload, monotonic_ns: int, *, is_full: bool) -> bool:
        """Whether an entry is to be folded rather than written."""
        about = payload.flood()
        if about is None:
            return False
        if is_full:
            return True
        if not payload.is_refusal:
            return False
        window = monotonic_ns // _WINDOW_NS
        if window != self._window:
            self._window = window
            self._refused.clear()
        name = self._name(self._refused, payload.kind, about)
        count = self._refused[name] = self._refused.get(name, 0) + 1
        return count > self._refusals_per_s

    def fold(
        self, payload: Payload, time_ns: int, monotonic_ns: int, about: str | None = None
    ) -> None:
        """Count an entry under its name; `about` is given for the end of what was folded."""
        if not self._heaps:
            self._heaps_since_ns = monotonic_ns
        under = payload.flood() if about is None else about
        name = self._name(self._heaps, payload.kind, under or "")
        heap = self._heaps.get(name)
        if heap is None:
            heap = self._heaps[name] = _Heap(time_ns)
        heap.last_ns = time_ns
        heap.count += 1
        heap.refusals += payload.is_refusal
        heap.bytes_out += getattr(payload, "bytes_out", 0)
        heap.bytes_in += getattr(payload, "bytes_in", 0)
        heap.digest.update(encode_payload(payload).encode("ascii") + b"\n")
        self.total += 1

    def is_due(self, monotonic_ns: int) -> bool:
        """Whether there are counts that have waited for a second."""
        return bool(self._heaps) and monotonic_ns - self._heaps_since_ns >= _WINDOW_NS

    def drain(self) -> list[Folded]:
        """Return what was counted, to be written, and begin anew."""
        heaps, self._heaps = self._heaps, {}
        return [
            Folded(
                of=kind,
                about=about,
                count=heap.count,
                refusals=heap.refusals,
                bytes_out=heap.bytes_out,
                bytes_in=heap.bytes_in,
                first_ns=heap.first_ns,
                last_ns=heap.last_ns,
                sha256=heap.digest.hexdigest(),
            )
            for (kind, about), heap in heaps.items()
        ]

    @staticmethod
    def _name(known: dict[tuple[str, str], Any], kind: str, about: str) -> tuple[str, str]:
        name = (kind, about)
        return name if name in known or len(known) < _MOST_HEAPS else (kind, _REST)
