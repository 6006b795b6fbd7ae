"""Images as the store knows them: a digest, its layers, its facts, and the names it goes by."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass

from cloister.errors import NotFound
from cloister.model import quote
from cloister.store.layers import parse_digest
from cloister.store.records import pack, unpack
from cloister.store.trees import Trees


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """One image: `layers` bottom first, `facts` a JSON text of whoever put it here."""

    digest: str
    layers: tuple[str, ...]
    facts: str
    created_at: float
    names: tuple[str, ...]


class Images:
    """The images of a store. An image without a name lasts as long as something stands on it."""

    def __init__(self, trees: Trees) -> None:
        self._trees = trees

    def put(
        self, digest: str, layers: Sequence[str], facts: str, *, name: str | None = None
    ) -> ImageRecord:
        """Record an image whose layers are here, and give it a name, taken from another if need be.

        Putting the same image again only moves the name.
        """
        parse_digest(digest)
        with self._trees.records.writing(durable=True) as connection:
            for layer in layers:
                if not _exists(connection, "layers", layer):
                    raise NotFound(f"no layer {quote(layer)} in the store", what=layer)
            connection.execute(
                "INSERT INTO images VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (digest) DO UPDATE SET owner = excluded.owner",
                (digest, pack(layers), facts, time.time(), self._trees.owner.name),
            )
            if name is not None:
                connection.execute(
                    "INSERT OR REPLACE INTO image_names VALUES (?, ?)", (name, digest)
                )
        return self.find(digest)

    def find(self, reference: str) -> ImageRecord:
        """Return an image by name or digest."""
        row = self._trees.records.one(
            "SELECT * FROM images WHERE digest = ?1"
            " OR digest = (SELECT digest FROM image_names WHERE name = ?1)",
            (reference,),
        )
        if row is None:
            raise NotFound(
                f"no image {quote(reference)}; get it with `cloister image pull`, or make it with "
                "`cloister image build` or `import`",
                what=reference,
            )
        return self._image(row)

    def list(self) -> list[ImageRecord]:
        """Return all images, oldest first."""
        rows = self._trees.records.all("SELECT * FROM images ORDER BY created_at, digest")
        return [self._image(row) for row in rows]

    def hold(self, digest: str) -> None:
        """Keep an image from `collect` until this process closes the store."""
        with self._trees.records.writing(durable=False) as connection:
            if not _exists(connection, "images", digest):
                raise NotFound(f"no image {quote(digest)} in the store", what=digest)
            connection.execute(
                "INSERT OR IGNORE INTO holds VALUES (?, ?)", (digest, self._trees.owner.name)
            )

    def name(self, name: str, digest: str) -> None:
        """Give an image a name, taken from another if need be."""
        with self._trees.records.writing(durable=True) as connection:
            if not _exists(connection, "images", digest):
                raise NotFound(f"no image {quote(digest)} in the store", what=digest)
            connection.execute("INSERT OR REPLACE INTO image_names VALUES (?, ?)", (name, digest))

    def unname(self, name: str) -> None:
        """Take a name away; the image goes with the next `collect` if nothing stands on it."""
        with self._trees.records.writing(durable=True) as connection:
            done = connection.execute("DELETE FROM image_names WHERE name = ?", (name,))
            if done.rowcount == 0:
                raise NotFound(f"no image {quote(name)}", what=name)

    def _image(self, row: sqlite3.Row) -> ImageRecord:
        names = self._trees.records.all(
            "SELECT name FROM image_names WHERE digest = ? ORDER BY name", (row["digest"],)
        )
        return ImageRecord(
            row["digest"],
            unpack(row["layers"]),
            row["facts"],
            row["created_at"],
            tuple(each["name"] for each in names),
        )


def _exists(connection: sqlite3.Connection, table: str, digest: str) -> bool:
    query = f"SELECT 1 FROM {table} WHERE digest = ?"  # noqa: S608
    return connection.execute(query, (digest,)).fetchone() is not None
