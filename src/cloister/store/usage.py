"""What the store's things take up on disk, and how much of that they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cloister.store.place import free_bytes
from cloister.store.records import unpack
from cloister.store.trees import Trees

Kind = Literal["image", "snapshot", "disk", "volume"]


@dataclass(frozen=True, slots=True)
class Item:
    """One thing in the store: without it `private_bytes` would be free, `shared_bytes` not."""

    kind: Kind
    name: str
    shared_bytes: int
    private_bytes: int
    limit_bytes: int | None = None
    # Whether all of it was counted; a sandbox at work can move files away from who counts them.
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """Everything in the store, and what is left of the disk it is on."""

    items: tuple[Item, ...]
    total_bytes: int
    free_bytes: int
    # Of the disk that the state directory is on, where that is another one than the pool.
    state_free_bytes: int


def measure(trees: Trees, state_free_bytes: int) -> StoreUsage:
    """Measure everything. On plain directories that counts every file."""
    rows = trees.records.all("SELECT * FROM trees WHERE state = 'ready' ORDER BY id")
    spaces = dict(
        zip(
            [row["id"] for row in rows],
            trees.driver.spaces([trees.path(row["id"]) for row in rows]),
            strict=True,
        )
    )
    items: list[Item] = []
    users = _users(trees)
    for row in rows:
        kind, _, name = row["id"].partition("/")
        space = spaces[row["id"]]
        if kind in ("disks", "volumes"):
            below = sum(spaces[each].held_bytes for each in unpack(row["chain"]) if each in spaces)
            shared = space.held_bytes - space.private_bytes + below + row["held_bytes"]
            what: Kind = "disk" if kind == "disks" else "volume"
            counted = (shared, space.private_bytes, row["limit_bytes"], space.is_whole)
            items.append(Item(what, name, *counted))
    for row in trees.records.all("SELECT * FROM snapshots ORDER BY created_at, id"):
        held = private = 0
        for tree in unpack(row["chain"]):
            if tree in spaces:
                held += spaces[tree].held_bytes
                private += spaces[tree].private_bytes if users[tree] == 1 else 0
        # A quota counts a block for whoever wrote it: a snapshot itself wrote next to nothing.
        items.append(Item("snapshot", row["id"], held - private + row["held_bytes"], private))
    items += _images(trees, {tree: space.held_bytes for tree, space in spaces.items()})
    total = trees.driver.total_bytes([*spaces.values()])
    return StoreUsage(tuple(items), total, free_bytes(trees.driver.root), state_free_bytes)


def _users(trees: Trees) -> dict[str, int]:
    """Return how many snapshots and disks stand on each sealed tree."""
    users: dict[str, int] = {}
    for query in ("SELECT chain FROM snapshots", "SELECT chain FROM trees WHERE state = 'ready'"):
        for row in trees.records.all(query):
            for tree in unpack(row["chain"]):
                users[tree] = users.get(tree, 0) + 1
    return users


def _images(trees: Trees, held: dict[str, int]) -> list[Item]:
    images = trees.records.all("SELECT digest, layers FROM images ORDER BY created_at")
    places = {row["digest"]: row["tree"] for row in trees.records.all("SELECT * FROM layers")}
    users: dict[str, int] = {}
    for row in images:
        for layer in set(unpack(row["layers"])):
            users[layer] = users.get(layer, 0) + 1
    items = []
    for row in images:
        sizes = {layer: held.get(places.get(layer, ""), 0) for layer in unpack(row["layers"])}
        private = sum(size for layer, size in sizes.items() if users[layer] == 1)
        items.append(Item("image", row["digest"], sum(sizes.values()) - private, private))
    return items
