"""Which processes are using the store: each holds a lock that ends with it, however it ends."""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path

from cloister.store.locks import is_held

_SUFFIX = ".owner"


class Owner:
    """This process's mark in the store; `name` is what its unfinished and unkept things carry."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        while True:
            self.name = f"{os.getpid()}-{secrets.token_hex(4)}"
            path = directory / (self.name + _SUFFIX)
            lock = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            # A sweep between these two lines took it for a dead one's: then nobody would find it.
            if os.fstat(lock).st_nlink:
                break
            os.close(lock)
        self.lock = lock

    def is_live(self, name: str | None) -> bool:
        """Whether the process of that mark still uses the store."""
        if name is None:
            return False
        return name == self.name or is_held(self._directory / (name + _SUFFIX))

    def sweep(self) -> None:
        """Remove the marks of processes that are no more."""
        for path in self._directory.glob("*" + _SUFFIX):
            if path.name != self.name + _SUFFIX and not is_held(path):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Take the mark away."""
        if self.lock < 0:
            return
        (self._directory / (self.name + _SUFFIX)).unlink(missing_ok=True)
        os.close(self.lock)
        self.lock = -1


def live_owners(directory: Path) -> list[int]:
    """Return the numbers of the processes that use the store whose locks are there."""
    marks = (path for path in directory.glob("*" + _SUFFIX) if is_held(path))
    return sorted(int(path.name.partition("-")[0]) for path in marks)
