"""What host directories were when they were copied into a kept sandbox, for `cloister apply`."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote as percent

from cloister.errors import NotFound, RequestError
from cloister.model import Mount, quote
from cloister.node import open_store
from cloister.sandbox.parcel import Summary

if TYPE_CHECKING:
    from cloister.store import Snapshot, Store
    from cloister.store.changes import Baseline, Step

_COPIED = "copied"
# A name of a file has 255 bytes at most, and one that is being written four more.
_MOST_CHARACTERS = 250


class Shelf(Protocol):
    """Where the baseline of one copy is kept."""

    async def put(self, baseline: Baseline) -> None: ...
    async def forget(self) -> None: ...


class Recording:
    """The baseline of one copy: read before it, kept after it."""

    def __init__(self, shelf: Shelf, baseline: Baseline) -> None:
        self._shelf = shelf
        self._baseline = baseline

    @classmethod
    async def begin(cls, shelf: Shelf, mount: Mount) -> Recording | None:
        """Read the directory that is about to be copied; what is none of them has no baseline."""
        from cloister.store.changes import take_baseline

        source = Path(mount.source)
        if not source.is_dir():
            return None
        return cls(shelf, await asyncio.to_thread(take_baseline, source))

    async def finish(self, summary: Summary) -> None:
        """Keep it, without what the copy left out: that must not count as deleted inside."""
        if summary.skipped_total > len(summary.skipped):
            # Not all of it is known, so nobody could tell later what was deleted.
            await self._shelf.forget()
            return
        left_out = {os.fsencode(path) for path, _ in summary.skipped}
        await self._shelf.put(await asyncio.to_thread(self._without, left_out))

    def _without(self, left_out: set[bytes]) -> Baseline:
        from cloister.store.changes import Baseline

        return Baseline(
            {
                path: mark
                for path, mark in self._baseline.marks.items()
                if left_out.isdisjoint(_and_above(path))
            }
        )


class OwnShelf:
    """The place of a baseline beside what is kept on this machine."""

    def __init__(self, name: str, target: str) -> None:
        self._name = name
        self._target = target

    async def put(self, baseline: Baseline) -> None:
        """Keep it."""
        store = await open_store()
        await asyncio.to_thread(write, store, self._name, self._target, baseline.lines())

    async def forget(self) -> None:
        """Keep none."""
        place_of(await open_store(), self._name, self._target).unlink(missing_ok=True)


def write(store: Store, name: str, target: str, lines: Iterable[bytes]) -> None:
    """Keep the baseline of what was copied to a path inside, whole or not at all."""
    place = place_of(store, name, target)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = place.with_suffix(".new")
    with open(fresh, "wb") as file:
        file.writelines(lines)
    fresh.replace(place)


def _and_above(path: bytes) -> Iterator[bytes]:
    while path:
        yield path
        path = path.rpartition(b"/")[0]


def place_of(store: Store, name: str, target: str) -> Path:
    """Return where the baseline of what was copied to a path inside is."""
    file = f"{percent(target, safe='')}.jsonl"
    if len(file) > _MOST_CHARACTERS:
        raise RequestError(f"the path {quote(target)} is too long to be copied to and applied from")
    return _directory(store, name) / file


def _directory(store: Store, name: str) -> Path:
    return store.directory / "baselines" / name


def read(store: Store, name: str, target: str) -> Baseline | None:
    """Return the baseline of what was copied to a path inside, if there is one."""
    from cloister.store.changes import Baseline

    try:
        with open(place_of(store, name, target), "rb") as file:
            return Baseline.read(file)
    except FileNotFoundError:
        return None


async def note_copied(name: str, snapshot: Snapshot) -> None:
    """Keep in mind what a sandbox was after its copies, to tell what it did from what it got."""
    place = _directory(await open_store(), name) / _COPIED
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.write_text(snapshot.id)


def copied(store: Store, name: str) -> Snapshot | None:
    """Return the snapshot after the copies that a sandbox was made with, if there is one."""
    try:
        return store.snapshots.find((_directory(store, name) / _COPIED).read_text())
    except (FileNotFoundError, NotFound):
        return None


def renew(store: Store, name: str, target: str, baseline: Baseline, done: Collection[Step]) -> None:
    """Say after an apply what the host has now."""
    write(store, name, target, renewed(baseline, done).lines())


def renewed(baseline: Baseline, done: Collection[Step]) -> Baseline:
    """Return what the host has after an apply: what it was given, and else what it had."""
    from cloister.store.changes import Baseline

    marks = dict(baseline.marks)
    gone = {step.path for step in done if step.had_directory and not step.makes_directory}
    if gone:
        marks = {path: mark for path, mark in marks.items() if gone.isdisjoint(_and_above(path))}
    for step in done:
        if step.after is None:
            marks.pop(step.path, None)
        else:
            marks[step.path] = step.after
    return Baseline(marks)


def hand_on(store: Store, name: str, fork: str) -> None:
    """Give a fork the baselines of the sandbox it came from."""
    source = _directory(store, name)
    if source.is_dir():
        shutil.copytree(source, _directory(store, fork), dirs_exist_ok=True)


def forget(store: Store, name: str) -> None:
    """Remove the baselines of a sandbox that is removed."""
    shutil.rmtree(_directory(store, name), ignore_errors=True)
