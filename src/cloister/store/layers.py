"""Image layers: unpacked once, by digest, shared by every sandbox and never written again."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from types import TracebackType

from cloister.errors import NotFound, RequestError
from cloister.model import quote
from cloister.store.driver import BENCH
from cloister.store.locks import sweep_locks, take_lock
from cloister.store.trees import Trees

_SUFFIX = ".layer"
_DIGEST = re.compile(r"sha(256:[0-9a-f]{64}|512:[0-9a-f]{128})")


def parse_digest(value: object) -> str:
    """Return the text as a digest; it is safe as one name in a path."""
    if not isinstance(value, str) or _DIGEST.fullmatch(value) is None:
        raise RequestError(f'a digest is {quote(value)}; write "sha256:" and 64 hexadecimal digits')
    return value


class Staging:
    """A layer being unpacked into `path`; `commit` or `abort` ends it, as does leaving a `with`."""

    def __init__(self, layers: Layers, digest: str, lock: int) -> None:
        self.digest = digest
        self._layers = layers
        self._lock = lock
        self.path = layers.place(digest)

    def commit(self, facts: str = "{}") -> None:
        """Make it a layer for everybody; once this returns, it survives a power cut."""
        self._layers.finish(self.digest, facts)
        self._end()

    def abort(self) -> None:
        """Remove what was unpacked; nothing happens after a commit."""
        if self._lock >= 0:
            self._layers.drop(self.digest)
            self._end()

    def _end(self) -> None:
        os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()


class Layers:
    """The layers of a store."""

    def __init__(self, trees: Trees, locks: Path) -> None:
        self._trees = trees
        self._locks = locks

    def has(self, digest: str) -> bool:
        """Whether a layer is here, whole."""
        row = self._trees.records.one(
            "SELECT 1 FROM layers WHERE digest = ?", (parse_digest(digest),)
        )
        return row is not None

    def begin(self, digest: str) -> Staging | None:
        """Start to unpack a layer, after waiting for whoever does already.

        None says that it is here: somebody else was first.
        """
        tree = tree_of_layer(parse_digest(digest))
        path = self._locks / f"{tree.replace('/', '-')}{_SUFFIX}"
        lock = take_lock(path, fcntl.LOCK_EX)
        try:
            if self.has(digest):
                self._adopt(digest)
                os.close(lock)
                return None
            self._trees.require_room()
            # Left by somebody who was killed while the store stayed open elsewhere.
            self._trees.discard(tree)
            with self._trees.records.writing(durable=False) as connection:
                self._trees.begin(connection, tree)
            self._trees.driver.make(self._trees.path(tree))
            return Staging(self, digest, lock)
        except BaseException:
            os.close(lock)
            raise

    def _adopt(self, digest: str) -> None:
        # Until an image names it, it lasts as long as the last process that asked for it.
        with self._trees.records.writing(durable=False) as connection:
            connection.execute(
                "UPDATE layers SET owner = ? WHERE digest = ?", (self._trees.owner.name, digest)
            )

    def place(self, digest: str) -> Path:
        """Return where a layer is unpacked, or to be."""
        return self._trees.path(tree_of_layer(digest)) / BENCH

    def path(self, digest: str) -> Path:
        """Return a layer's directory, to be shown read-only."""
        if not self.has(digest):
            raise NotFound(f"no layer {quote(digest)} in the store; pull its image", what=digest)
        return self.place(digest)

    def facts(self, digest: str) -> str:
        """Return what was said of a layer when it was committed."""
        row = self._trees.records.one("SELECT facts FROM layers WHERE digest = ?", (digest,))
        if row is None:
            raise NotFound(f"no layer {quote(digest)} in the store; pull its image", what=digest)
        return str(row["facts"])

    def finish(self, digest: str, facts: str) -> None:
        """Say that a layer is whole."""
        self._trees.driver.sync()
        with self._trees.records.writing(durable=True) as connection:
            self._trees.finish(connection, tree_of_layer(digest), chain=())
            connection.execute(
                "INSERT INTO layers VALUES (?, ?, ?, ?)",
                (digest, tree_of_layer(digest), facts, self._trees.owner.name),
            )

    def drop(self, digest: str) -> None:
        """Remove a layer that was not finished."""
        self._trees.discard(tree_of_layer(digest))

    def sweep(self) -> None:
        """Remove the locks of layers that nobody unpacks."""
        sweep_locks(self._locks, _SUFFIX, lambda _: False)

    def remove(self, digest: str) -> None:
        """Remove a layer that no image names; `collect` does so for all of them."""
        with self._trees.records.writing(durable=True) as connection:
            connection.execute("DELETE FROM layers WHERE digest = ?", (parse_digest(digest),))
        self._trees.discard(tree_of_layer(digest))


def tree_of_layer(digest: str) -> str:
    """Return the tree that a layer is."""
    return f"layers/{digest.replace(':', '-')}"
