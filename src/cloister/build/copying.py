"""COPY and ADD: what is brought, where it goes inside, and the way it gets there."""

from __future__ import annotations

import asyncio
import os
import posixpath
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

from cloister.build.archives import is_archive, unfolded
from cloister.build.contents import SourceTree
from cloister.build.shipment import Manner, Move, entry, joined, ship, survey
from cloister.build.workshop import Workshop
from cloister.errors import NotFound, RequestError
from cloister.model import quote
from cloister.sandbox import Kind
from cloister.store.changes.tar_header import DIRECTORY, FILE, padding, trailer

_DIRECTORY_MODE = 0o755
_FILE_MODE = 0o644


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to bring: a file or directory of a context."""

    context: SourceTree
    path: str
    is_directory: bool

    @property
    def move(self) -> Move:
        """What it is called below the target, where that is a directory."""
        return Move(self.path, "" if self.is_directory else posixpath.basename(self.path))


@dataclass(frozen=True, slots=True)
class Cargo:
    """Everything that one COPY or ADD brings; `documents` are (name, content)."""

    items: Sequence[Item]
    documents: Sequence[tuple[str, bytes]]
    # Absolute; a slash at its end says that it is a directory.
    target: str
    manner: Manner
    unpack: bool


def find_items(context: SourceTree, sources: Sequence[str]) -> list[Item]:
    """Return what the sources of a COPY stand for."""
    return [
        Item(context, path, context.is_directory(path))
        for source in sources
        for path in context.match(source)
    ]


def digest_items(items: Sequence[Item]) -> list[str]:
    """Return what is in them, as digests; where they lie does not count."""
    return [survey(item.context, [item.move]).digest for item in items]


async def bring(workshop: Workshop, cargo: Cargo) -> int:
    """Bring it inside; return how many things were left out, being no file, directory or link."""
    place = await _find_place(workshop, cargo)
    left_out = 0
    archives = [item for item in cargo.items if cargo.unpack and _is_archive(item)]
    for item in (item for item in cargo.items if item not in archives):
        name = "" if place.is_directory else place.name
        move = item.move if place.is_directory else Move(item.path, name)
        found = await asyncio.to_thread(survey, item.context, [move])
        left_out += found.left_out
        existing = await _existing(workshop, place, found.directories)
        stream = ship(item.context, [move], cargo.manner, existing.__contains__, place.inside)
        await workshop.unpack(place.base, _threaded(place.with_parents(stream, cargo.manner)))
        place = place.made()
    for name, content in cargo.documents:
        own = name if place.is_directory else place.name
        stream = _file(place.inside(own), content, cargo.manner)
        await workshop.unpack(place.base, _threaded(place.with_parents(stream, cargo.manner)))
        place = place.made()
    for item in archives:
        if place.missing:
            parents = place.with_parents(iter((trailer(),)), cargo.manner)
            await workshop.unpack(place.base, _threaded(parents))
            place = place.made()
        stream = unfolded(item.context.open(item.path))
        await workshop.unpack(posixpath.join(place.base, *place.parts), _threaded(stream))
    return left_out


@dataclass(frozen=True, slots=True)
class _Place:
    """The deepest directory there is on the way to the target, and the names that follow it."""

    base: str
    parts: tuple[str, ...]
    missing: tuple[str, ...]
    is_directory: bool
    # Of the file itself, where the target is one.
    name: str = ""

    def inside(self, name: str) -> str:
        """Return a name below the target as one below the base."""
        return joined("/".join(self.parts), name)

    def with_parents(self, stream: Iterator[bytes], manner: Manner) -> Iterator[bytes]:
        """Yield an archive with the missing directories before what is in it."""
        owned = Manner(manner.owner)
        for path in self.missing:
            yield entry(f"{path}/", DIRECTORY, _DIRECTORY_MODE, owned, mtime_s=int(time.time()))
        yield from stream

    def made(self) -> _Place:
        """Return it with nothing missing any more."""
        return _Place(self.base, self.parts, (), self.is_directory, self.name)


async def _find_place(workshop: Workshop, cargo: Cargo) -> _Place:
    target = posixpath.normpath(cargo.target)
    archives = any(cargo.unpack and _is_archive(item) for item in cargo.items)
    many = len(cargo.items) + len(cargo.documents) > 1
    is_directory = cargo.target.endswith("/") or many or archives
    is_directory = is_directory or any(item.is_directory for item in cargo.items)
    kind = await _kind(workshop, target)
    if kind is Kind.DIRECTORY:
        is_directory = True
    elif is_directory and kind is not None:
        raise RequestError(f"{quote(target)} is no directory in the image; name one")
    path, name = (target, "") if is_directory else posixpath.split(target)
    parts: list[str] = []
    while (found := await _kind(workshop, path)) is not Kind.DIRECTORY:
        if found is not None:
            raise RequestError(f"{quote(path)} is no directory in the image")
        path, last = posixpath.split(path)
        parts.insert(0, last)
    missing = tuple("/".join(parts[: end + 1]) for end in range(len(parts)))
    return _Place(path, tuple(parts), missing, is_directory, name)


async def _kind(workshop: Workshop, path: str, *, follow: bool = True) -> Kind | None:
    try:
        return (await workshop.files.stat(path, follow=follow)).kind
    except NotFound:
        return None


async def _existing(workshop: Workshop, place: _Place, directories: Sequence[str]) -> set[str]:
    """Return which of the directories are there already; the place itself always counts."""
    existing = {""}
    if place.missing:
        return existing
    for name in directories:
        if not name or posixpath.dirname(name) not in existing:
            continue
        path = posixpath.join(place.base, *place.parts, name)
        kind = await _kind(workshop, path, follow=False)
        if kind is Kind.DIRECTORY:
            existing.add(name)
        elif kind is not None:
            raise RequestError(
                f"{quote(path)} is no directory in the image, and one would take its place; "
                "copy to where it leads"
            )
    return existing


def _is_archive(item: Item) -> bool:
    if item.is_directory:
        return False
    handle = item.context.open(item.path)
    try:
        return is_archive(handle)
    finally:
        os.close(handle)


def _file(name: str, content: bytes, manner: Manner) -> Iterator[bytes]:
    yield entry(name, FILE, _FILE_MODE, manner, size=len(content), mtime_s=int(time.time()))
    yield content + padding(len(content))
    yield trailer()


async def _threaded(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Go through something that reads files, in a thread; small pieces are joined."""
    gather: Callable[[], bytes] = lambda: _gather(chunks)  # noqa: E731
    while piece := await asyncio.to_thread(gather):
        yield piece


def _gather(chunks: Iterator[bytes]) -> bytes:
    piece = bytearray()
    for chunk in chunks:
        piece += chunk
        if len(piece) >= 2**18:
            break
    return bytes(piece)
