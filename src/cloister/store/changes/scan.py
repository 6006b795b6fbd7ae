"""Walks all that a sandbox made, in order, beside what was there before; the rest stands on it."""

from __future__ import annotations

import errno
import heapq
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cloister.errors import GuestError, HostError
from cloister.model.changes import Change, EntryType, escape, path_order
from cloister.store.changes.descent import OPEN_DIRECTORIES, Descent
from cloister.store.changes.describe import Description
from cloister.store.changes.layers import NOTHING, Entry, look
from cloister.store.changes.names import sorted_names, union
from cloister.store.changes.stratum import Owners, Skeleton, Stratum

# Every path is said in full, so a chain of directories costs the square of its depth.
MAXIMUM_PATH_BYTES = 256 * 1024
# What the kernel says where something else stands than a moment ago: nothing, a link, a pipe.
_REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO)


@dataclass(frozen=True, slots=True)
class View:
    """What of the changes is wanted, and how.

    `below`: only this tree. `deep`: all that was in a deleted directory is said too.
    `expand`: a directory that was made anew is compared with the old one; otherwise all in it is
    new, and it is marked opaque. `tolerant`: a directory that may not be read is passed over.
    """

    skeleton: Skeleton
    owners: Owners
    below: bytes = b""
    deep: bool = False
    expand: bool = True
    tolerant: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """One step of a scan. The entries can be read until the next step.

    Without a change it is a directory that is as it was, with changes perhaps in it.
    """

    path: bytes
    change: Change | None
    now: Entry | None
    past: Entry | None
    opaque: bool = False


def scan(strata: Sequence[Stratum], view: View) -> Iterator[Found]:
    """Yield all that the sandbox touched, sorted: each directory before what is in it."""
    places = {stratum.place for stratum in strata}
    walks = [
        _walk_of(stratum)(stratum, places - {stratum.place}, view).run()
        for stratum in strata
        if _is_in(stratum.place, view.below) or _is_in(view.below, stratum.place)
    ]
    if len(walks) == 1:
        return walks[0]
    return heapq.merge(*walks, key=lambda found: path_order(found.path))


def _walk_of(stratum: Stratum) -> type[Walk]:
    if stratum.then is None:
        return Walk
    from cloister.store.changes.since import WalkSince

    return WalkSince


@contextmanager
def reading(path: bytes | bytearray) -> Iterator[None]:
    """Say which path it was that could not be read, and whose fault that is."""
    try:
        yield
    except OSError as error:
        shown = escape(bytes(path) or b"/")
        if error.errno in _REPLACED:
            raise GuestError(
                f"{shown} was removed or replaced while it was read; ask again, or pause the "
                "sandbox first"
            ) from error
        raise HostError(f"{shown} cannot be read: {error.strerror}") from error


def _is_in(path: bytes, tree: bytes) -> bool:
    return path == tree or path.startswith(tree + b"/")


class Inner(NamedTuple):
    """A directory to go into: its layers, and whether nothing of the past shows through."""

    now: tuple[Descent, ...]
    past: tuple[Descent, ...]
    hides: bool


@dataclass(slots=True)
class Frame:
    """A directory being walked, which begins after `length` bytes of the path."""

    length: int
    names: Iterator[bytes]
    now: tuple[Descent, ...]
    past: tuple[Descent, ...]
    hides: bool


class Walk:
    """The walk of one overlay, without recursion: its stack is a list."""

    def __init__(self, stratum: Stratum, covered: set[bytes], view: View) -> None:
        self._stratum = stratum
        self._covered = covered
        self._view = view
        self._path = bytearray(stratum.place)
        self._description = Description(view.skeleton, view.owners)

    def run(self) -> Iterator[Found]:
        with ExitStack() as opened, reading(self._path):
            yield from self._steps(opened)

    def _steps(self, opened: ExitStack) -> Iterator[Found]:
        top = self._layers(opened)
        if _is_in(self._stratum.place, self._view.below):
            yield self._visit_top(top.now, top.past)
        stack = [self._frame(top)]
        while stack:
            frame = stack[-1]
            del self._path[frame.length :]
            name = next(frame.names, None)
            if name is None:
                stack.pop()
                for descent in (*frame.now, *frame.past) if stack else ():
                    descent.up()
                continue
            self._path += b"/" + name
            if len(self._path) > MAXIMUM_PATH_BYTES:
                raise GuestError(
                    f"a path of more than {MAXIMUM_PATH_BYTES} bytes; remove what is that deep"
                )
            if bytes(self._path) in self._covered:
                continue
            found, inner = self._visit(frame, name)
            if found is not None and self._is_wanted(found):
                yield found
            if inner is not None and self._go_down(inner, name):
                stack.append(self._frame(inner))

    def _layers(self, opened: ExitStack) -> Inner:
        stratum = self._stratum
        tops = [stratum.upper, *stratum.sealed]
        held = OPEN_DIRECTORIES // (len(tops) + len(stratum.lowers))
        now = tuple(self._open(opened, top, held) for top in tops)
        past = tuple(self._open(opened, lower, held) for lower in stratum.lowers)
        return Inner(now, past, False)

    def _listed(self, inner: Inner) -> Sequence[Descent]:
        """Return the layers of a directory whose names must be looked at."""
        return (*inner.now, *inner.past) if inner.hides else inner.now

    def _go_down(self, inner: Inner, name: bytes) -> bool:
        """Go into a directory in all layers; False if it is none any more, as happens in use."""
        descents = (*inner.now, *inner.past)
        for count, descent in enumerate(descents):
            try:
                descent.down(name)
            except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
                if isinstance(error, PermissionError) and not self._view.tolerant:
                    raise
                for moved in descents[:count]:
                    moved.up()
                return False
        return True

    def _is_wanted(self, found: Found) -> bool:
        below = self._view.below
        if _is_in(found.path, below):
            return True
        # Above the tree: of interest only where it ends the way there.
        return found.now is None or found.now.type is not EntryType.DIRECTORY

    @staticmethod
    def _open(opened: ExitStack, top: int | Path, held: int) -> Descent:
        descent = Descent(top, held)
        opened.callback(descent.close)
        return descent

    def _frame(self, inner: Inner) -> Frame:
        path, below = bytes(self._path), self._view.below
        if below != path and _is_in(below, path):
            names: Iterator[bytes] = iter([below[len(path) + 1 :].split(b"/", 1)[0]])
        else:
            sources = [sorted_names(descent.handle) for descent in self._listed(inner)]
            if given := self._view.skeleton.names_in(path):
                sources.append(iter(given))
            names = union(sources)
        return Frame(len(path), names, inner.now, inner.past, inner.hides)

    def _visit_top(self, now: tuple[Descent, ...], past: tuple[Descent, ...]) -> Found:
        """The mounted directory itself: it is never new, and no layer of it is opaque."""
        path = bytes(self._path)
        top = look(now[:1], b".").entry
        before = look(past[:1], b".").entry if past else None
        if top is None:
            raise HostError("the upper directory is gone")
        known = before is not None or self._view.skeleton.at(path) is not None
        change = self._description.compare(path, top, before) if known else None
        return Found(path or b"/", change, top, before)

    def _visit(self, frame: Frame, name: bytes) -> tuple[Found | None, Inner | None]:
        """Return what to say about a name, and the directories to go into, if any."""
        path = bytes(self._path)
        now = look(frame.now, name)
        past = look(frame.past, name) if frame.past else NOTHING
        # Only for `deep`: what was in a directory that is none any more.
        gone = Inner((), past.directories, True) if self._view.deep and past.directories else None
        if now.entry is None:
            if past.entry is not None and not (now.covers or frame.hides):
                return None, None
            change = self._description.deleted(path, past.entry)
            if change is None:
                return None, None
            return Found(path, change, None, past.entry), gone
        hides = frame.hides or now.covers
        merged = past.directories if now.directories else ()
        opaque = bool(merged) and hides and not self._view.expand
        if opaque:
            merged, hides = (), False
        change = self._description.compare(path, now.entry, past.entry)
        found = Found(path, change, now.entry, past.entry, opaque)
        return found, Inner(now.directories, merged, hides) if now.directories else gone
