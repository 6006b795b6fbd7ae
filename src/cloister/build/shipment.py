"""What COPY brings from the context, as a tar stream with the owners and modes it asks for."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from cloister.build.contents import Found, SourceTree
from cloister.errors import RequestError
from cloister.model import User, quote
from cloister.store.changes.tar_header import (
    DIRECTORY,
    FILE,
    LINK,
    Member,
    header,
    padding,
    trailer,
)

_CHUNK_BYTES = 2**20
_WHITEOUT = ".wh."


@dataclass(frozen=True, slots=True)
class Manner:
    """Whose the files become, and the mode they all get where one is asked for."""

    owner: User
    mode: int | None = None


@dataclass(slots=True)
class Survey:
    """What a look at everything that is brought found: its digest, its directories, its rest."""

    digest: str = ""
    directories: list[str] = field(default_factory=list)
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """A path of the context, and what it is called where it goes; empty for the place itself."""

    path: str
    name: str


def survey(context: SourceTree, moves: Sequence[Move]) -> Survey:
    """Look at everything once. The times of files do not count: a fresh checkout is no change."""
    found = Survey()
    whole = hashlib.sha256()
    for move, each in _walk(context, moves):
        kind = stat.S_IFMT(each.status.st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            found.left_out += 1
            continue
        name = joined(move.name, each.path)
        require_plain(name)
        if kind == stat.S_IFDIR:
            found.directories.append(name)
        facts = [name, each.target, each.status.st_mode]
        content = hashlib.sha256()
        if kind == stat.S_IFREG:
            for chunk in _content(each):
                content.update(chunk)
        whole.update(repr((facts, content.hexdigest())).encode("utf-8", "surrogateescape"))
    found.digest = whole.hexdigest()
    return found


def ship(
    context: SourceTree,
    moves: Sequence[Move],
    manner: Manner,
    exists: Callable[[str], bool],
    place: Callable[[str], str],
) -> Iterator[bytes]:
    """Yield the tar. Directories that are there already are left as they are.

    `place` says what the archive calls what goes to a name.
    """
    for move, each in _walk(context, moves):
        name = joined(move.name, each.path)
        kind = stat.S_IFMT(each.status.st_mode)
        if kind == stat.S_IFDIR:
            if not exists(name) and place(name):
                yield header(_member(place(name), DIRECTORY, each, manner))
        elif kind == stat.S_IFLNK:
            yield header(_member(place(name), LINK, each, manner))
        elif kind == stat.S_IFREG:
            yield header(_member(place(name), FILE, each, manner))
            yield from _content(each)
            yield padding(each.status.st_size)
    yield trailer()


def entry(name: str, kind: bytes, mode: int, manner: Manner, **facts: int | bytes) -> bytes:
    """Return the header of something that is not of the context."""
    given = manner.mode if manner.mode is not None and kind != LINK else mode
    size, mtime_s = int(facts.get("size", 0)), int(facts.get("mtime_s", 0))
    target = facts.get("target", b"")
    return header(
        Member(
            os.fsencode(name),
            kind,
            given,
            *manner.owner,
            mtime_s=mtime_s,
            size=size,
            target=target if isinstance(target, bytes) else b"",
        )
    )


def joined(above: str, below: str) -> str:
    """Join two relative names, either of which may be empty."""
    return f"{above}/{below}" if above and below else above or below


def require_plain(name: str) -> None:
    """Refuse a name that says in an image's layer that something is gone."""
    if name.rpartition("/")[2].startswith(_WHITEOUT):
        raise RequestError(
            f"{quote(name)} cannot be brought: in images such names mean a deletion; rename it"
        )


def _walk(context: SourceTree, moves: Sequence[Move]) -> Iterator[tuple[Move, Found]]:
    for move in moves:
        try:
            for each in context.walk(move.path):
                yield move, each
        except OSError as error:
            words = error.strerror or str(error)
            raise RequestError(f"{quote(move.path or '.')} cannot be read: {words}") from error


def _content(each: Found) -> Iterator[bytes]:
    """Yield as many bytes as were promised: one that grows is cut, one that shrinks an error."""
    left = each.status.st_size
    handle = each.open()
    try:
        while left:
            chunk = os.read(handle, min(left, _CHUNK_BYTES))
            if not chunk:
                raise RequestError(f"{quote(each.name)} shrank while it was read; build again")
            left -= len(chunk)
            yield chunk
    finally:
        os.close(handle)


def _member(name: str, kind: bytes, each: Found, manner: Manner) -> Member:
    mode = stat.S_IMODE(each.status.st_mode)
    if manner.mode is not None and kind != LINK:
        mode = manner.mode
    return Member(
        os.fsencode(name),
        kind,
        mode,
        *manner.owner,
        mtime_s=each.status.st_mtime_ns // 10**9,
        size=each.status.st_size if kind == FILE else 0,
        target=os.fsencode(each.target),
    )
