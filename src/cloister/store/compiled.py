"""Keeps modules that were compiled once, and lets nothing be loaded that is not what was kept.

What is kept is native code. A sandbox of its own that has run nothing makes it, the host alone
writes it here, and no sandbox sees this directory: each is given the bytes it asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from cloister.store.place import make_private, state_directory

MAX_ARTIFACT_BYTES = 256 * 2**20
_MAX_KEPT_BYTES = 2**30
_SUFFIX = ".compiled"
# A draft that is older has nobody who would finish it.
_DRAFT_S = 3600.0


class CompiledModules:
    """The compiled modules of one version of the compiler, by the digest of the module."""

    def __init__(self, compiler: str, directory: Path | None = None) -> None:
        self._compiler = compiler
        self._directory = (state_directory() if directory is None else directory) / "modules"

    def find(self, digest: bytes) -> bytes | None:
        """Return what was kept for a module, if it is there and whole."""
        try:
            fd = os.open(self._path(digest), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            ours = found.st_uid == os.geteuid() and not found.st_mode & 0o077
            if not (ours and stat.S_ISREG(found.st_mode) and found.st_size <= _LARGEST):
                return None
            seal, artifact = file.read(_SEAL_BYTES), file.read()
        if not artifact or seal != self._seal(digest, artifact):
            return None
        with contextlib.suppress(OSError):
            # The oldest is the one that was used longest ago.
            os.utime(self._path(digest))
        return artifact

    def keep(self, digest: bytes, artifact: bytes) -> None:
        """Keep what a module was compiled to; whole and under its name, or not at all."""
        make_private(self._directory.parent)
        make_private(self._directory)
        draft = self._directory / f".{secrets.token_hex(8)}"
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as file:
                file.write(self._seal(digest, artifact))
                file.write(artifact)
            os.replace(draft, self._path(digest))
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        self._make_room()

    def _path(self, digest: bytes) -> Path:
        name = hashlib.sha256(self._compiler.encode() + b"\0" + digest).hexdigest()
        return self._directory / (name + _SUFFIX)

    def _seal(self, digest: bytes, artifact: bytes) -> bytes:
        # Bound to the module and the compiler: a file under another's name is not taken for it.
        seal = hashlib.sha256(self._compiler.encode() + b"\0" + digest)
        seal.update(artifact)
        return seal.digest()

    def _make_room(self) -> None:
        """Remove those used longest ago, and drafts of processes that are no more."""
        entries = sorted(self._entries(), key=lambda entry: entry[1].st_mtime, reverse=True)
        total = 0
        for path, status in entries:
            total += status.st_size
            is_left = path.suffix != _SUFFIX and status.st_mtime < time.time() - _DRAFT_S
            if is_left or total > _MAX_KEPT_BYTES:
                path.unlink(missing_ok=True)

    def _entries(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self._directory.iterdir():
            with contextlib.suppress(FileNotFoundError):
                yield path, path.lstat()


_SEAL_BYTES = hashlib.sha256().digest_size
_LARGEST = _SEAL_BYTES + MAX_ARTIFACT_BYTES
