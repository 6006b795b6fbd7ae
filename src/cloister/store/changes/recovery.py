"""Undoes what an apply had done when it was cut off."""

from __future__ import annotations

from pathlib import Path

from cloister.errors import HostError
from cloister.store.changes.baseline import STAGING
from cloister.store.changes.deeds import Deed, parse_journal, undo
from cloister.store.changes.host_tree import HostTree
from cloister.store.changes.staging import Staging, open_staging


def recover(directory: Path) -> bool:
    """Undo an apply to this directory that was interrupted; whether there was anything to undo."""
    tree = HostTree(directory)
    try:
        staging = open_staging(tree.top, directory, make=False)
        if staging is None:
            return False
        try:
            undone = recover_staging(tree, staging, directory)
            staging.remove(tree.top)
            return undone
        finally:
            staging.close()
    finally:
        tree.close()


def recover_staging(tree: HostTree, staging: Staging, directory: Path) -> bool:
    """Undo what is left in a staging directory; whether there was anything to undo."""
    journal = staging.read_journal()
    if journal is not None:
        go_back(parse_journal(journal), tree, staging, directory)
    try:
        staging.clear()
    except OSError as error:
        raise HostError(
            f"{directory}/{STAGING.decode()} holds what is not ours: {error.strerror}; move it away"
        ) from error
    return journal is not None


def go_back(deeds: list[Deed], tree: HostTree, staging: Staging, directory: Path) -> None:
    """Undo deeds, and bring that to disk."""
    try:
        undo(deeds, tree, staging)
        staging.sync()
    except OSError as error:
        raise HostError(
            f"{directory} is half changed and could not be put back: {error.strerror}; "
            f"what was there is kept in {STAGING.decode()}, apply again to try once more"
        ) from error
