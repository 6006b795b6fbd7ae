"""What host directories were when they were copied into a kept sandbox, for `cloister apply`."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote as percent

from cloister.errors import NotFound
from cloister.model import Mount
from cloister.node import open_store
from cloister.sandbox.parcel import Summary

if TYPE_CHECKING:
    from cloister.store import Snapshot, Store
    from cloister.store.changes import Baseline, Mark, Plan

_COPIED = "copied"


class Recording:
    """The baseline of one copy: read before it, kept after it."""

    def __init__(self, place: Path, baseline: Baseline) -> None:
        self._place = place
        self._baseline = baseline

    @classmethod
    async def begin(cls, name: str, mount: Mount) -> Recording | None:
        """Read the directory that is about to be copied; what is none of them has no baseline."""
        from cloister.store.changes import take_baseline

        source = Path(mount.source)
        if not source.is_dir():
            return None
        place = place_of(await open_store(), name, mount.target)
        return cls(place, await asyncio.to_thread(take_baseline, source))

    async def finish(self, summary: Summary) -> None:
        """Keep it, without what the copy left out: that must not count as deleted inside."""
        if summary.skipped_total > len(summary.skipped):
            # Not all of it is known, so nobody could tell later what was deleted.
            self._place.unlink(missing_ok=True)
            return
        left_out = {os.fsencode(path) for path, _ in summary.skipped}
        await asyncio.to_thread(self._write, left_out)

    def _write(self, left_out: set[bytes]) -> None:
        marks = {
            path: mark
            for path, mark in self._baseline.marks.items()
            if left_out.isdisjoint(_and_above(path))
        }
        _write(self._place, marks)


def _write(place: Path, marks: Mapping[bytes, Mark]) -> None:
    from cloister.store.changes import Baseline

    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = place.with_suffix(".new")
    with open(fresh, "wb") as file:
        file.writelines(Baseline(marks).lines())
    fresh.replace(place)


def _and_above(path: bytes) -> Iterator[bytes]:
    while path:
        yield path
        path = path.rpartition(b"/")[0]


def place_of(store: Store, name: str, target: str) -> Path:
    """Return where the baseline of what was copied to a path inside is."""
    return _directory(store, name) / f"{percent(target, safe='')}.jsonl"


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


def renew(store: Store, name: str, target: str, baseline: Baseline, done: Plan) -> None:
    """Say after an apply what the host has now: what it was given, and else what it had."""
    marks = dict(baseline.marks)
    gone = {step.path for step in done.steps if step.had_directory and not step.makes_directory}
    if gone:
        marks = {path: mark for path, mark in marks.items() if gone.isdisjoint(_and_above(path))}
    for step in done.steps:
        if step.after is None:
            marks.pop(step.path, None)
        else:
            marks[step.path] = step.after
    _write(place_of(store, name, target), marks)


def hand_on(store: Store, name: str, fork: str) -> None:
    """Give a fork the baselines of the sandbox it came from."""
    source = _directory(store, name)
    if source.is_dir():
        shutil.copytree(source, _directory(store, fork), dirs_exist_ok=True)


def forget(store: Store, name: str) -> None:
    """Remove the baselines of a sandbox that is removed."""
    shutil.rmtree(_directory(store, name), ignore_errors=True)
