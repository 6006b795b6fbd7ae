"""Removes what nothing refers to; may be interrupted anywhere and run again."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cloister.store.owners import Owner
from cloister.store.records import unpack
from cloister.store.snapshot import forget
from cloister.store.spares import forget_spares, spare_of
from cloister.store.trees import Trees

# Called with how many trees are gone, and of how many.
Progress = Callable[[int, int], None]


_DISKS = "disks/"


@dataclass(frozen=True, slots=True)
class Collected:
    """What was removed, or (in a dry run) would be.

    `trees` are disks of sandboxes that are no more, sealed trees nobody stands on, layers, and
    what crashes left; `freed_bytes` is what was written to them, and shared with nothing that stays
    as far as that is counted.
    """

    snapshots: tuple[str, ...]
    images: tuple[str, ...]
    trees: tuple[str, ...]
    freed_bytes: int


def collect(trees: Trees, *, dry_run: bool, progress: Progress | None) -> Collected:
    """Remove what nothing refers to.

    Referred to are: every snapshot with a name; what a kept sandbox stands on, and what came before
    that; everything of sandboxes that run now; images with a name, and those that any of these
    stand on; volumes.
    """
    recovered = [] if dry_run else trees.recover()
    with trees.records.writing(durable=True) as connection:
        garbage = _find(connection, trees.owner)
        if not dry_run:
            _mark(connection, garbage)
    spaces = trees.driver.spaces([trees.path(tree) for tree in garbage.trees])
    if not dry_run:
        for done, tree in enumerate(garbage.trees):
            trees.discard(tree)
            if progress is not None:
                progress(done + 1, len(garbage.trees))
        trees.driver.tidy()
        trees.owner.sweep()
    freed = sum(space.private_bytes for space in spaces)
    found = tuple(sorted({*recovered, *garbage.trees}))
    return Collected(garbage.snapshots, garbage.images, found, freed)


def sweep_disks(trees: Trees) -> tuple[str, ...]:
    """Remove the disks of sandboxes whose process is no more and that nobody keeps."""
    with trees.records.writing(durable=False) as connection:
        kept = {row["disk"] for row in connection.execute("SELECT disk FROM kept")}
        rows = connection.execute("SELECT id, owner FROM trees WHERE state = 'ready'").fetchall()
        left = [
            row["id"]
            for row in rows
            if row["id"].startswith(_DISKS)
            and row["id"].removeprefix(_DISKS) not in kept
            and not trees.owner.is_live(row["owner"])
        ]
        for tree in left:
            connection.execute("UPDATE trees SET state = 'removing' WHERE id = ?", (tree,))
    trees.discard(*left)
    return tuple(left)


@dataclass(frozen=True, slots=True)
class _Garbage:
    snapshots: tuple[str, ...]
    images: tuple[str, ...]
    layers: tuple[str, ...]
    trees: tuple[str, ...]


def _find(connection: sqlite3.Connection, owner: Owner) -> _Garbage:
    kept = connection.execute("SELECT name, disk, head, image FROM kept").fetchall()
    snapshots = connection.execute("SELECT * FROM snapshots").fetchall()
    live = _live_snapshots(kept, snapshots, owner)
    staying = [row for row in snapshots if row["id"] in live]
    images = connection.execute("SELECT * FROM images").fetchall()
    live_images = _live_images(connection, (*kept, *staying), images, owner)
    layers = connection.execute("SELECT * FROM layers").fetchall()
    live_layers = {
        layer for row in images if row["digest"] in live_images for layer in unpack(row["layers"])
    } | {row["digest"] for row in layers if owner.is_live(row["owner"])}
    needed = {tree for row in staying for tree in unpack(row["chain"])}
    needed |= {row["tree"] for row in layers if row["digest"] in live_layers}
    needed |= {row["tree"] for row in connection.execute("SELECT tree FROM volumes")}
    needed |= {spare_of(id) for id in live}
    return _Garbage(
        tuple(row["id"] for row in snapshots if row["id"] not in live),
        tuple(row["digest"] for row in images if row["digest"] not in live_images),
        tuple(row["digest"] for row in layers if row["digest"] not in live_layers),
        tuple(_unneeded(connection, needed, {row["disk"] for row in kept}, owner)),
    )


def _live_snapshots(
    kept: Iterable[sqlite3.Row], snapshots: Iterable[sqlite3.Row], owner: Owner
) -> set[str]:
    parents = {row["id"]: row["parent"] for row in snapshots}
    names = {row["name"] for row in kept}
    pending = [row["head"] for row in kept]
    for row in snapshots:
        # A kept sandbox that runs may have left a branch behind: that is what we are here for.
        runs = row["sandbox"] not in names and owner.is_live(row["owner"])
        if row["name"] is not None or runs:
            pending.append(row["id"])
    live: set[str] = set()
    while pending:
        id = pending.pop()
        if id in parents and id not in live:
            live.add(id)
            pending.append(parents[id])
    return live


def _live_images(
    connection: sqlite3.Connection,
    standing: Iterable[sqlite3.Row],
    images: Iterable[sqlite3.Row],
    owner: Owner,
) -> set[str]:
    live = {row["digest"] for row in connection.execute("SELECT digest FROM image_names")}
    live |= {row["image"] for row in standing if row["image"] is not None}
    live |= {row["digest"] for row in images if owner.is_live(row["owner"])}
    holds = connection.execute("SELECT digest, owner FROM holds").fetchall()
    return live | {row["digest"] for row in holds if owner.is_live(row["owner"])}


def _unneeded(
    connection: sqlite3.Connection, needed: set[str], kept_disks: set[str], owner: Owner
) -> list[str]:
    rows = connection.execute("SELECT id, state, owner, chain FROM trees").fetchall()
    for row in rows:
        kind, _, name = row["id"].partition("/")
        is_disk = kind == "disks" and (name in kept_disks or owner.is_live(row["owner"]))
        is_unfinished = row["state"] == "making" and owner.is_live(row["owner"])
        if is_disk or is_unfinished:
            needed = {*needed, row["id"], *unpack(row["chain"])}
    return [row["id"] for row in rows if row["id"] not in needed]


def _mark(connection: sqlite3.Connection, garbage: _Garbage) -> None:
    for snapshot in garbage.snapshots:
        forget(connection, snapshot)
    # Also one that is being made, which its maker then takes away.
    forget_spares(connection, garbage.snapshots)
    for image in garbage.images:
        connection.execute("DELETE FROM images WHERE digest = ?", (image,))
    for layer in garbage.layers:
        connection.execute("DELETE FROM layers WHERE digest = ?", (layer,))
    for tree in garbage.trees:
        connection.execute("UPDATE trees SET state = 'removing' WHERE id = ?", (tree,))
