"""Memory that was saved with a snapshot: sealed files, each called as its snapshot."""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from cloister.errors import HostError, NotFound, RequestError, Unsupported
from cloister.model import quote
from cloister.store.place import make_private
from cloister.store.trees import Trees

KEY_BYTES = 32
_MAGIC = b"cloister-memory-1\n"
_SALT_BYTES = 32
# Sealed a piece at a time; a piece says which one it is and whether it is the last.
_PIECE = 1024 * 1024
_TAG_BYTES = 16
_MOST_FACTS_BYTES = 64 * 1024
_SEALED, _PART, _PAUSED = ".sealed", ".part", ".paused"


class Memories:
    """What is kept of memory, by the id of the snapshot that has the disk of the same moment."""

    def __init__(self, trees: Trees) -> None:
        self._trees = trees
        self._directory = memory_directory(trees.state)

    def has(self, snapshot: str) -> bool:
        """Whether there is memory to a snapshot."""
        return self._path(snapshot).exists()

    def seal(
        self,
        snapshot: str,
        files: Path,
        facts: Mapping[str, Any],
        key: bytes,
        most_bytes: int | None = None,
    ) -> None:
        """Keep the files of a directory under a key; there is all of it or nothing."""
        make_private(self._directory)
        names = sorted(entry.name for entry in files.iterdir())
        sizes = [(name, _plain_size(files / name)) for name in names]
        total_bytes = sum(size for _, size in sizes)
        if most_bytes is not None and total_bytes > most_bytes:
            # Holes count: a file of nothing else would be written out in full.
            raise HostError(
                f"the saved memory has {total_bytes} bytes and may have {most_bytes}; none was kept"
            )
        part = self._directory / f"{snapshot}.{secrets.token_hex(4)}{_PART}"
        try:
            with open(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as out:
                salt = secrets.token_bytes(_SALT_BYTES)
                out.write(_MAGIC + salt)
                head = json.dumps({**facts, "files": sizes}).encode()
                pieces = _pieces(head, [files / name for name in names])
                for piece in _sealed(pieces, _cipher(key, salt), snapshot):
                    out.write(piece)
                out.flush()
                os.fsync(out.fileno())
            part.rename(self._path(snapshot))
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def facts(self, snapshot: str, key: bytes) -> dict[str, Any]:
        """Return what was said of the memory when it was saved."""
        with self._open(snapshot) as sealed:
            return _read_facts(_opened(sealed, key, snapshot), snapshot)[0]

    def unseal(self, snapshot: str, into: Path, key: bytes) -> dict[str, Any]:
        """Write the files into a directory, which is in memory; return what was said of it."""
        with self._open(snapshot) as sealed:
            facts, rest = _read_facts(_opened(sealed, key, snapshot), snapshot)
            for name, size in facts["files"]:
                with open(
                    os.open(into / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o444), "wb"
                ) as out:
                    while size > 0:
                        piece = _next(rest, snapshot)
                        out.write(piece)
                        size -= len(piece)
            return facts

    def remove(self, snapshot: str) -> None:
        """Forget the memory of a snapshot, whose disk stays."""
        self._path(snapshot).unlink(missing_ok=True)

    def pause(self, name: str, snapshot: str) -> None:
        """Note that a kept sandbox goes on from the memory of its newest snapshot."""
        make_private(self._directory)
        path = self._directory / f"{name}{_PAUSED}"
        written = path.with_name(f"{name}.{secrets.token_hex(4)}{_PART}")
        with open(written, "x") as file:
            file.write(snapshot)
            file.flush()
            os.fsync(file.fileno())
        written.rename(path)
        _sync(self._directory)

    def paused(self, name: str) -> str | None:
        """Return the snapshot from whose memory a kept sandbox is to go on, if it is."""
        try:
            snapshot = (self._directory / f"{name}{_PAUSED}").read_text()
        except FileNotFoundError:
            return None
        row = self._trees.records.one("SELECT head FROM kept WHERE name = ?", (name,))
        # A rewind, or a sandbox of the same name that was made anew, has nothing to go on from.
        fits = row is not None and row["head"] == snapshot and self.has(snapshot)
        return snapshot if fits else None

    def wake(self, name: str, snapshot: str | None = None) -> None:
        """It goes on, or is not to: its programs are not started from there again.

        With a `snapshot` it must wait for that very one. Once this returns, nothing brings it back
        but another `pause`: not a crash, not a power cut.
        """
        if snapshot is not None and self.paused(name) != snapshot:
            raise RequestError(
                f"{quote(name)} has gone on, or has been given up meanwhile; open it with "
                f"keep={quote(name)}"
            )
        try:
            (self._directory / f"{name}{_PAUSED}").unlink()
        except FileNotFoundError:
            return
        _sync(self._directory)

    def sweep(self) -> None:
        """Remove what belongs to no snapshot, and what a crash left half-written."""
        if not self._directory.is_dir():
            return
        known = {row["id"] for row in self._trees.records.all("SELECT id FROM snapshots", ())}
        for path in self._directory.iterdir():
            is_known = path.suffix != _SEALED or path.stem in known
            if not is_known or path.suffix == _PART:
                path.unlink(missing_ok=True)

    def _path(self, snapshot: str) -> Path:
        return self._directory / f"{snapshot}{_SEALED}"

    def _open(self, snapshot: str) -> IO[bytes]:
        try:
            return open(self._path(snapshot), "rb")
        except FileNotFoundError:
            raise NotFound(
                f"snapshot {quote(snapshot)} has no memory; take one with memory=True",
                what=snapshot,
            ) from None


def memory_directory(state: Path) -> Path:
    """Return where sealed memory lies."""
    return state / "memory"


def remove_memories(state: Path, snapshots: Iterable[str]) -> None:
    """Remove the memory of snapshots that are no more."""
    for snapshot in snapshots:
        (memory_directory(state) / f"{snapshot}{_SEALED}").unlink(missing_ok=True)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _pieces(head: bytes, paths: list[Path]) -> Iterator[bytes]:
    """Yield everything in pieces, none of which holds bytes of two files."""
    yield len(head).to_bytes(4, "little") + head
    for path in paths:
        with open(os.open(path, _PLAINLY), "rb") as file:
            while piece := file.read(_PIECE):
                yield piece


# Whoever wrote them was inside a wall that may have been broken: a link would lead to the host's
# files, and a pipe would be waited for.
_PLAINLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _plain_size(path: Path) -> int:
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise HostError(
            f"the saved memory has {quote(path.name)}, which is no plain file; none was kept"
        )
    return status.st_size


def _sealed(pieces: Iterator[bytes], cipher: Any, snapshot: str) -> Iterator[bytes]:
    number, piece = 0, next(pieces)
    for after in pieces:
        yield _seal(cipher, number, piece, snapshot, last=False)
        number, piece = number + 1, after
    yield _seal(cipher, number, piece, snapshot, last=True)


def _seal(cipher: Any, number: int, piece: bytes, snapshot: str, *, last: bool) -> bytes:
    sealed: bytes = cipher.encrypt(_nonce(number, last), piece, snapshot.encode())
    return len(sealed).to_bytes(4, "little") + sealed


def _opened(file: IO[bytes], key: bytes, snapshot: str) -> Iterator[bytes]:
    from cryptography.exceptions import InvalidTag

    if file.read(len(_MAGIC)) != _MAGIC:
        raise HostError(f"the memory of {snapshot} is no file of ours; remove the snapshot")
    cipher = _cipher(key, file.read(_SALT_BYTES))
    number, is_last = 0, False
    length = file.read(4)
    while length:
        size = int.from_bytes(length, "little")
        if size > _PIECE + _TAG_BYTES + _MOST_FACTS_BYTES:
            raise HostError(f"the memory of {snapshot} is damaged; remove the snapshot")
        sealed, length = file.read(size), file.read(4)
        is_last = not length
        try:
            yield cipher.decrypt(_nonce(number, is_last), sealed, snapshot.encode())
        except InvalidTag:
            raise HostError(
                f"the memory of {snapshot} is damaged, or was sealed under another key; name the "
                "right one with CLOISTER_MEMORY_KEY"
            ) from None
        number += 1


def _read_facts(pieces: Iterator[bytes], snapshot: str) -> tuple[dict[str, Any], Iterator[bytes]]:
    head = _next(pieces, snapshot)
    return json.loads(head[4:]), pieces


def _next(pieces: Iterator[bytes], snapshot: str) -> bytes:
    piece = next(pieces, None)
    if piece is None:
        raise HostError(f"the memory of {snapshot} is not all there; remove the snapshot")
    return piece


def _nonce(number: int, last: bool) -> bytes:
    # Each file has a key of its own, so that a counter never repeats under one.
    return number.to_bytes(11, "little") + bytes((last,))


def _cipher(key: bytes, salt: bytes) -> Any:
    if len(key) != KEY_BYTES:
        raise RequestError(f"a key of {len(key)} bytes for memory; it has {KEY_BYTES}")
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError:
        raise Unsupported(
            "saved memory is encrypted, which needs the Python package cryptography; "
            "pip install 'cloister[memory]'"
        ) from None
    return AESGCM(HKDF(SHA256(), KEY_BYTES, salt, b"cloister memory").derive(key))
