"""Disks made before they are asked for: of a snapshot that is forked, one fork is ready.

On btrfs a snapshot of any size is made at once, but the call returns only when everything before it
is written out. A fork that finds a disk ready waits for none of that: it renames a directory.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from cloister.errors import CloisterError
from cloister.store.records import unpack
from cloister.store.trees import Trees


def spare_of(snapshot: str) -> str:
    """Return the tree of the disk that is ready for a fork of a snapshot."""
    return f"spares/{snapshot}"


class Spares:
    """The disks that are ready; any process may take one, and whoever is first.

    Of all snapshots of a sandbox one has such a disk: that which was named or forked last.
    """

    def __init__(self, trees: Trees) -> None:
        self._trees = trees
        self._lock = threading.Lock()
        self._worker: ThreadPoolExecutor | None = None
        self._making: dict[str, Future[None]] = {}

    def prepare(self, snapshot: str) -> None:
        """Have a disk ready for the next fork soon, where making one takes its time."""
        if not self._trees.driver.keeps_spares:
            return
        with self._lock:
            if snapshot in self._making:
                return
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, thread_name_prefix="cloister-spares")
            self._making[snapshot] = self._worker.submit(self._make, snapshot)

    def _make(self, snapshot: str) -> None:
        try:
            # A fork that finds none makes its own disk, and says what is wrong if that fails.
            with contextlib.suppress(CloisterError, OSError, sqlite3.Error):
                self._trees.require_room()
                self._make_now(snapshot)
        finally:
            with self._lock:
                del self._making[snapshot]

    def _make_now(self, snapshot: str) -> None:
        trees, spare = self._trees, spare_of(snapshot)
        with trees.records.writing(durable=False) as connection:
            row = connection.execute(
                "SELECT chain, sandbox FROM snapshots WHERE id = ?", (snapshot,)
            ).fetchone()
            if row is None:
                return
            others = connection.execute(
                "SELECT id FROM snapshots WHERE sandbox = ? AND id != ?", (row["sandbox"], snapshot)
            ).fetchall()
            unused = forget_spares(connection, [each["id"] for each in others])
            chain = unpack(row["chain"])
            trees.begin(connection, spare, chain=chain)
        trees.discard(*unused)
        try:
            trees.driver.grow(trees.path(spare), [trees.path(each) for each in chain])
            trees.driver.warm(trees.path(spare))
            with trees.records.writing(durable=False) as connection:
                # Not if its snapshot was removed meanwhile, and it was marked with that.
                done = connection.execute(
                    "UPDATE trees SET state = 'ready', chain = '[]' "
                    "WHERE id = ? AND state = 'making'",
                    (spare,),
                )
            is_wanted = done.rowcount == 1
        except BaseException:
            trees.discard(spare)
            raise
        if not is_wanted:
            trees.discard(spare)

    def wait(self, snapshots: Iterable[str]) -> None:
        """Return when this process makes none for any of these; those not begun are not made."""
        making: list[Future[None]] = []
        with self._lock:
            for each in snapshots:
                if each in self._making:
                    making.append(self._making[each])
                    if making[-1].cancel():
                        del self._making[each]
                        making.pop()
        for future in making:
            future.exception()

    def take(self, connection: sqlite3.Connection, snapshot: str, path: Path) -> bool:
        """Move the disk that is ready to a place, if there is one.

        In the transaction that promises what is to be there: a crash leaves a disk that nobody
        knows, or a spare that is not there, and both are seen to.
        """
        spare = spare_of(snapshot)
        found = connection.execute(
            "DELETE FROM trees WHERE id = ? AND state = 'ready'", (spare,)
        ).rowcount
        if found:
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._trees.path(spare), path)
                return True
        return False

    def close(self) -> None:
        """Make no more; one that is being made is finished."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.shutdown(wait=True)


def forget_spares(connection: sqlite3.Connection, snapshots: Iterable[str]) -> list[str]:
    """Mark the spares of snapshots that are being forgotten; return those there are."""
    return [
        spare_of(each)
        for each in snapshots
        if connection.execute(
            "UPDATE trees SET state = 'removing' WHERE id = ?", (spare_of(each),)
        ).rowcount
    ]
