"""Walks what a sandbox made beside what it had made at an earlier moment, on the same layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from cloister.errors import HostError
from cloister.store.changes.descent import OPEN_DIRECTORIES, Descent
from cloister.store.changes.layers import look
from cloister.store.changes.scan import Found, Frame, Inner, View, Walk
from cloister.store.changes.stratum import Stratum


def since(strata: Sequence[Stratum], benches: Sequence[Path]) -> tuple[Stratum, ...]:
    """Return the strata, to be compared with what these benches (top first) held of each."""
    return tuple(replace(each, then=tuple(_uppers(each, benches))) for each in strata)


def _uppers(stratum: Stratum, benches: Sequence[Path]) -> Iterator[Path]:
    if isinstance(stratum.upper, int):
        raise HostError("an upper without a path has no place in other benches")
    for bench in benches:
        path = bench / stratum.upper.parent.name / stratum.upper.name
        # An overlay that the sandbox did not have at that moment was not changed then.
        if path.is_dir():
            yield path


class WalkSince(Walk):
    """Both sides stand on the lowers; these are only looked at where one of them was touched."""

    def __init__(self, stratum: Stratum, covered: set[bytes], view: View) -> None:
        super().__init__(stratum, covered, view)
        # Of each descent into a lower: which one. Others are into what the sandbox made.
        self._shared: dict[int, int] = {}

    def _layers(self, opened: ExitStack) -> Inner:
        stratum = self._stratum
        made, then = (stratum.upper, *stratum.sealed), stratum.then or ()
        held = OPEN_DIRECTORIES // (len(made) + len(then) + 2 * len(stratum.lowers))

        def on_lowers(tops: Sequence[Descent]) -> tuple[Descent, ...]:
            lowers = [self._open(opened, lower, held) for lower in stratum.lowers]
            self._shared |= {id(descent): index for index, descent in enumerate(lowers)}
            return (*tops, *lowers)

        now = on_lowers([self._open(opened, top, held) for top in made])
        past = on_lowers([self._open(opened, top, held) for top in then])
        return Inner(now, past, True)

    def _listed(self, inner: Inner) -> Sequence[Descent]:
        every = (*inner.now, *inner.past)
        if self._shows(inner.now) != self._shows(inner.past):
            return every
        # The same lowers show through on both sides: what they hold is no change.
        return [descent for descent in every if id(descent) not in self._shared]

    def _shows(self, layers: Sequence[Descent]) -> list[int]:
        return [self._shared[id(each)] for each in layers if id(each) in self._shared]

    def _visit(self, frame: Frame, name: bytes) -> tuple[Found | None, Inner | None]:
        path = bytes(self._path)
        now, past = look(frame.now, name), look(frame.past, name)
        gone = Inner((), past.directories, True) if self._view.deep and past.directories else None
        if now.entry is None:
            if past.entry is None:
                return None, None
            change = self._description.deleted(path, past.entry)
            return Found(path, change, None, past.entry), gone
        change = self._description.compare(path, now.entry, past.entry)
        found = Found(path, change, now.entry, past.entry)
        if not now.directories:
            return found, gone
        inner = Inner(now.directories, past.directories, True)
        return found, inner if self._listed(inner) else None
