"""Removes trees that were made by a stranger: deeper than any path, wider than memory."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path


def remove_tree(tree: Path, trash: Path) -> None:
    """Remove a directory and all in it. `trash` is on the same filesystem, and ours.

    Each directory is moved up into the trash before it is emptied: so nothing recurses, no more
    than three descriptors are open, and what is left after a crash lies in one place.
    """
    top_name = trash / secrets.token_hex(8)
    top_name.mkdir(mode=0o700)
    with suppress(FileNotFoundError):
        os.rename(tree, top_name / "0")
    _empty_container(top_name)


def empty_trash(trash: Path) -> None:
    """Remove what removals that were cut short have left."""
    for name in os.listdir(trash):
        _empty_container(trash / name)


def _empty_container(path: Path) -> None:
    # Somebody else may be emptying the same one, and be done first.
    with suppress(FileNotFoundError):
        top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            while names := os.listdir(top):
                for name in names:
                    _empty(top, name)
        finally:
            os.close(top)
        path.rmdir()


def _empty(top: int, name: str) -> None:
    try:
        inner = _open(top, name)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        _unlink(top, name)
        return
    try:
        while _sweep(top, inner):
            # Entries that move while a directory is read may be passed over.
            continue
    finally:
        os.close(inner)
    try:
        os.rmdir(name, dir_fd=top)
    except FileNotFoundError:
        return


def _open(top: int, name: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=top)
    except PermissionError:
        # With a single id its owner is us, but may have shut it against itself.
        if not stat.S_ISDIR(os.lstat(name, dir_fd=top).st_mode):
            raise NotADirectoryError from None
        os.chmod(name, 0o700, dir_fd=top)
        return os.open(name, flags, dir_fd=top)


def _sweep(top: int, inner: int) -> bool:
    found = False
    if os.fstat(inner).st_mode & 0o700 != 0o700:
        os.fchmod(inner, 0o700)
    with os.scandir(inner) as entries:
        for entry in entries:
            found = True
            if not entry.is_dir(follow_symlinks=False):
                _unlink(inner, entry.name)
                continue
            try:
                _lift(inner, entry.name, top)
            except FileNotFoundError:
                continue
    return found


def _lift(inner: int, name: str, top: int) -> None:
    # Many are empty: no need to move those.
    with suppress(OSError):
        os.rmdir(name, dir_fd=inner)
        return
    target = secrets.token_hex(8)
    try:
        os.rename(name, target, src_dir_fd=inner, dst_dir_fd=top)
    except PermissionError:
        # To move a directory elsewhere, its `..` is written: that needs its own permission.
        os.chmod(name, 0o700, dir_fd=inner)
        os.rename(name, target, src_dir_fd=inner, dst_dir_fd=top)


def _unlink(directory: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return
