"""Removes trees that were made by a stranger: deeper than any path, wider than memory."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from cloister.store.tree_walk import opened_up

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(tree: Path, trash: Path) -> None:
    """Remove a directory and all in it. `trash` is on the same filesystem, and ours.

    Each directory is moved up into the trash before it is emptied: so nothing recurses, few
    descriptors are open, and what is left after a crash lies in one place.
    """
    container = trash / secrets.token_hex(8)
    while True:
        try:
            container.mkdir(mode=0o700, exist_ok=True)
            os.rename(tree, container / "0")
        except FileNotFoundError:
            # Somebody else has just emptied the trash; or the tree is not there.
            if os.path.lexists(tree):
                continue
        break
    _remove_container(container)


def empty_trash(trash: Path) -> None:
    """Remove what removals that were cut short have left."""
    for name in os.listdir(trash):
        _remove_container(trash / name)


def _remove_container(path: Path) -> None:
    # Somebody else may be emptying the same one, and be done first.
    with suppress(FileNotFoundError):
        top = os.open(path, _FLAGS)
        try:
            _Removal(top).empty(top)
            while not _rmdir(path):
                _Removal(top).empty(top)
        finally:
            os.close(top)


class _Removal:
    """One removal. What is lifted out of a directory goes to `within`, on the same subvolume.

    A directory cannot be moved from one subvolume to another, but a whole subvolume can: those
    that a sandbox nested go to the top, however many there are inside each other.
    """

    def __init__(self, top: int) -> None:
        self._top = top

    def empty(self, within: int) -> None:
        while names := _names(within):
            for name in names:
                with suppress(FileNotFoundError):
                    self._remove(within, name)

    def _remove(self, within: int, name: str) -> None:
        try:
            inner = _open(within, name)
        except NotADirectoryError:
            os.unlink(name, dir_fd=within)
            return
        try:
            if os.fstat(inner).st_dev != os.fstat(within).st_dev:
                # Its own root takes the part of the trash. Deeper than twice this does not go:
                # a subvolume inside is lifted to the top.
                self.empty(inner)
            else:
                while self._sweep(within, inner):
                    # Entries may be passed over where others go while a directory is read.
                    continue
        finally:
            os.close(inner)
        _rmdir(name, within)

    def _sweep(self, within: int, inner: int) -> bool:
        found = False
        os.lseek(inner, 0, os.SEEK_SET)
        with os.scandir(inner) as entries:
            for entry in entries:
                found = True
                with suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        self._lift(inner, entry.name, within)
                    else:
                        os.unlink(entry.name, dir_fd=inner)
        return found

    def _lift(self, inner: int, name: str, within: int) -> None:
        # Many are empty: no need to move those.
        with suppress(OSError):
            os.rmdir(name, dir_fd=inner)
            return
        is_nested = os.lstat(name, dir_fd=inner).st_dev != os.fstat(inner).st_dev
        target, place = secrets.token_hex(8), self._top if is_nested else within
        try:
            os.rename(name, target, src_dir_fd=inner, dst_dir_fd=place)
        except PermissionError:
            # To move a directory elsewhere its `..` is written, and that needs its permission.
            with opened_up(inner, name):
                os.rename(name, target, src_dir_fd=inner, dst_dir_fd=place)


def _names(directory: int) -> list[str]:
    # btrfs shows through a descriptor what was there when it was last at the beginning.
    os.lseek(directory, 0, os.SEEK_SET)
    return os.listdir(directory)


def _rmdir(path: Path | str, directory: int | None = None) -> bool:
    """Remove a directory; False where somebody put something into it, who also empties it or dies.

    A program that was killed may have one more file in its hands.
    """
    try:
        os.rmdir(path, dir_fd=directory)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        return False
    return True


def _open(directory: int, name: str) -> int:
    try:
        inner = os.open(name, _FLAGS, dir_fd=directory)
    except PermissionError:
        # With a single id its owner is us, but may have shut it against itself.
        if not stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
            raise NotADirectoryError from None
        with opened_up(directory, name) as path:
            inner = os.open(path, _FLAGS & ~os.O_NOFOLLOW)
    if os.fstat(inner).st_mode & 0o700 != 0o700:
        os.fchmod(inner, 0o700)
    return inner
