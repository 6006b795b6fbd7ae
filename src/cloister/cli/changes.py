"""What a kept sandbox changed, written as text, JSON, a patch or a tar by whoever may read it."""

from __future__ import annotations

import asyncio
import errno
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cloister.cli import outlet, session
from cloister.cli.kept import Compared
from cloister.errors import Unsupported
from cloister.store.changes import TarStyle, Written, patch, since, summary, walk, write_tar
from cloister.store.stand_in import as_reader
from cloister.wire.streams import PipeIncoming, open_pipe

if TYPE_CHECKING:
    from cloister.model.changes import Change

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """Which changes are wanted: of what, below which path, and since which benches if any."""

    compared: Compared
    below: str
    benches: tuple[Path, ...] | None

    def trees(self) -> Compared:
        """Return what to compare. For whoever may look into the benches."""
        strata, skeleton, owners = self.compared
        return strata if self.benches is None else since(strata, self.benches), skeleton, owners


def write_listing(fd: int, asked: Asked, form: str) -> None:
    """Write what changed as lines, as a JSON list, or as the sum of it."""
    lines = listing(walk(*asked.trees(), below=asked.below), form)
    with open(fd, "wb", closefd=False) as file:
        for line in lines:
            file.write(line.encode())


def listing(changes: Iterator[Change], form: str) -> Iterable[str]:
    """Return changes as lines, as a JSON list, or as the sum of them."""
    if form == "stat":
        return [f"{summary(changes)}\n"]
    if form == "stat-json":
        counted = summary(changes)
        fields = ("added", "changed", "deleted", "content_bytes")
        return [json.dumps({name: getattr(counted, name) for name in fields}) + "\n"]
    if form == "json":
        return _json_list(changes)
    return (f"{change.display()}\n" for change in changes)


def _json_list(changes: Iterator[Change]) -> Iterator[str]:
    joint = "["
    for change in changes:
        yield joint + json.dumps(change.to_json())
        joint = ",\n"
    yield "[]\n" if joint == "[" else "]\n"


def write_patch(fd: int, asked: Asked, binary: bool) -> None:
    """Write what changed as a patch."""
    with open(fd, "wb", closefd=False) as file:
        for piece in patch(*asked.trees(), below=asked.below, binary=binary):
            file.write(piece)


def write_archive(fd: int, asked: Asked, style: str) -> Written:
    """Write what changed as a tar."""
    return write_tar(fd, *asked.trees(), style=TarStyle(style), below=asked.below)


async def to_descriptor(fd: int, write: Callable[..., T], *arguments: object) -> T:
    """Let somebody who may read the trees write to a descriptor."""
    return await asyncio.to_thread(_as_owner, fd, write, *arguments)


async def to_standard_output(write: Callable[..., T], *arguments: object) -> T | None:
    """Show what is written as it comes; on a terminal nothing of it acts. None: nobody reads."""
    read, write_end = open_pipe()
    writing = asyncio.create_task(
        asyncio.to_thread(functools.partial(_as_owner, write_end, write, *arguments, close=True))
    )
    source = PipeIncoming(read)
    try:
        await outlet.drain(source, 1, neutral=session.is_terminal(1))
    finally:
        # A writer that nobody reads finds that out, and ends.
        source.close()
        await asyncio.wait([writing])
    try:
        return writing.result()
    except BrokenPipeError:
        return None


def _as_owner(fd: int, write: Callable[..., T], *arguments: object, close: bool = False) -> T:
    try:
        return as_reader(write, fd, *arguments, keep=(fd,))
    except FileNotFoundError as error:
        raise Unsupported(
            f"the disk was changed while it was compared ({error}); ask again"
        ) from error
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise BrokenPipeError(errno.EPIPE, "nobody reads") from error
        raise
    finally:
        if close:
            os.close(fd)
