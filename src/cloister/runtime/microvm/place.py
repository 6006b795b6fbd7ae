"""Where machines keep what is made once: images, QEMU's own root, and machines that have booted."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from cloister.model import new_sandbox_id
from cloister.runtime.microvm.given_up import current_work
from cloister.store.place import make_private, state_directory

SETTING = "CLOISTER_MICROVM"
# What is being made, the lock of who makes it, and what is being removed.
PART, LOCK, GONE = ".part", ".lock", "gone-"


def machine_place() -> Path:
    """Return where that is, which need not exist yet."""
    given = os.environ.get(SETTING)
    return Path(given).absolute() if given else state_directory() / "microvm"


def machine_directory() -> Path:
    """Return the directory, made and closed to others."""
    path = machine_place()
    if not os.environ.get(SETTING):
        make_private(path.parent)
    make_private(path)
    return path


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return the file or directory `name`; `make` writes it if nobody has.

    What was half made when its maker died is removed by the next.
    """
    directory = machine_directory()
    path = directory / name
    if path.exists():
        return path
    with _alone(directory, name):
        if path.exists():
            return path
        part = directory / (name + PART)
        _remove(part)
        try:
            make(part)
            os.rename(part, path)
        except BaseException:
            _remove(part)
            raise
    return path


@contextlib.contextmanager
def _alone(directory: Path, name: str) -> Iterator[None]:
    lock = current_work().take_lock(directory / f"{name}{LOCK}")
    try:
        yield
    finally:
        os.close(lock)


def remove_whole(path: Path) -> None:
    """Remove a directory of which nobody finds half; who has its files open keeps them."""
    gone = path.rename(path.with_name(f"{GONE}{new_sandbox_id()}"))
    shutil.rmtree(gone, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
