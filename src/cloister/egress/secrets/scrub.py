"""Looks for values in what passes, across any cut: to take them out, or to stop at the first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_MASK = b"*"
_MOST_RELEASED = 3
# Beginnings of what is longer are not all kept: there would be as much of them as its square.
_KEPT_BYTES = 64


class Patterns:
    """What is looked for: byte strings, each with the name of the secret it is a form of."""

    def __init__(self, named: Mapping[bytes, str]) -> None:
        self.named = dict(named)
        self.longest = max(map(len, self.named), default=0)
        # Beginnings by their last byte, the longest first: at a cut only these are compared.
        self._beginnings: dict[int, list[bytes]] = {}
        beginnings = {
            each[:size] for each in self.named for size in range(1, min(len(each), _KEPT_BYTES))
        }
        self._long = [(each, each[:_KEPT_BYTES]) for each in self.named if len(each) > _KEPT_BYTES]
        for each in sorted(beginnings, key=len, reverse=True):
            self._beginnings.setdefault(each[-1], []).append(each)

    def held(self, data: bytes) -> int:
        """Return how much of the end may be the beginning of something looked for."""
        if not data:
            return 0
        longest = max((_held_of(data, each, first) for each, first in self._long), default=0)
        if longest:
            return longest
        for beginning in self._beginnings.get(data[-1], ()):
            if data.endswith(beginning):
                return len(beginning)
        return 0

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """Return where anything looked for is, from first to last; they may overlap."""
        found = []
        for each in self.named:
            at = data.find(each)
            while at >= 0:
                found.append((at, at + len(each)))
                at = data.find(each, at + 1)
        return sorted(found)

    def first(self, data: bytes) -> str | None:
        """Return the name of a secret that is in it."""
        return next((name for each, name in self.named.items() if each in data), None)

    def masked(self, data: bytes) -> bytes:
        """Return it without any of them; its length stays, and so does what counts on it."""
        spans = self.spans(data)
        return _mask(data, spans) if spans else data


def _held_of(data: bytes, whole: bytes, first: bytes) -> int:
    """Return how much of the end is a beginning of `whole` that has all of `first` in it."""
    at = data.find(first, max(0, len(data) - len(whole) + 1))
    while at >= 0 and not whole.startswith(data[at:]):
        at = data.find(first, at + 1)
    return len(data) - at if at >= 0 else 0


def _mask(data: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for start, end in spans:
        changed[start:end] = _MASK * (end - start)
    return bytes(changed)


class Scrubber:
    """A stream without them. What may be the beginning of one waits until it is known not to be."""

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        # Passed on already, and perhaps the beginning of one; then what is held.
        self._passed = b""
        self._held = b""
        # How much of what is held is the end of one whose beginning has been passed on.
        self._masked = 0

    def feed(self, data: bytes) -> bytes:
        """Return what can be passed on now."""
        data = self._passed + self._held + data
        return self._pass_on(data, len(data) - self._patterns.held(data))

    def end(self) -> bytes:
        """Return what was held: the stream is over."""
        data = self._passed + self._held
        return self._pass_on(data, len(data))

    def release(self) -> bytes:
        """Return what is held if it is next to nothing: somebody may be waiting for it.

        So many characters of a value may pass where a server pauses in the middle of it; the
        rest of it does not.
        """
        if self._passed or not 0 < len(self._held) <= _MOST_RELEASED:
            return b""
        released = _MASK * self._masked + self._held[self._masked :]
        self._passed, self._held, self._masked = self._held, b"", 0
        return released

    def _pass_on(self, data: bytes, cut: int) -> bytes:
        start = len(self._passed)
        spans = self._patterns.spans(data)
        if self._masked:
            spans.insert(0, (start, start + self._masked))
        kept = max(cut, start)
        self._held = data[kept:]
        self._masked = max((end - kept for at, end in spans if at <= kept < end), default=0)
        if cut >= start:
            self._passed = b""
        if not spans:
            return data[start:kept]
        return _mask(data, spans)[start:kept]


class Finder:
    """A stream that stops at the first of them; nothing of that one has been passed on."""

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        self._held = b""
        self.found: str | None = None

    def feed(self, data: bytes) -> bytes:
        """Return what can be passed on now; nothing more once one was found."""
        if self.found is not None:
            return b""
        data = self._held + data
        self.found = self._patterns.first(data)
        if self.found is not None:
            self._held = b""
            return b""
        cut = len(data) - self._patterns.held(data)
        self._held = data[cut:]
        return data[:cut]

    def end(self) -> bytes:
        """Return what was held: the stream is over."""
        held, self._held = self._held, b""
        return held
