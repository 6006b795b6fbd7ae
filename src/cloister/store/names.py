"""What people call the things that the store knows by their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloister.store.store import Store


def called_names(store: Store) -> dict[tuple[str, str], str]:
    """Return the names by kind and id."""
    names = {("disk", kept.disk): kept.name for kept in store.kept.list()}
    for snapshot in store.snapshots.list():
        if snapshot.name is not None:
            names["snapshot", snapshot.id] = f"{snapshot.sandbox}@{snapshot.name}"
        elif snapshot.step is not None:
            names["snapshot", snapshot.id] = f"{snapshot.sandbox}@{snapshot.step}"
    for image in store.images.list():
        if image.names:
            names["image", image.digest] = image.names[0]
    return names
