"""Memory that was saved with a snapshot: sealed files, each called as its snapshot."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from cloister.errors import HostError, NotFound, RequestError
from cloister.model import quote
from cloister.store.locks import take_lock
from cloister.store.place import make_private
from cloister.store.sealing import Sealed, open_sealed, write_sealed
from cloister.store.trees import Trees

# The one file of a memory that others stand on.
LAYERED = "memory"
# In a directory of files, that with the memories they stand on, each a file called as it is.
UNDER = "under"
_SEALED, _PART, _PAUSED, _UNDER = ".sealed", ".part", ".paused", f".{UNDER}"
_DISK = ".disk"
# Whoever goes on needs those of then; what they say is not sealed, and is not secret.
KeptDisks = tuple[tuple[str, Path], ...]


class Memories:
    """What is kept of memory, by the id of the snapshot that has the disk of the same moment.

    A memory may be what differs from others that it stands on. Each has links of its own to the
    sealed files of those (`SNAPSHOT.NAME.under`), so that whoever is removed takes nothing from
    another, and with the last one they are gone. So it has of disks that its machine reads
    (`SNAPSHOT.NAME.disk`), where those are on the same filesystem.
    """

    def __init__(self, trees: Trees) -> None:
        self._trees = trees
        self._directory = memory_directory(trees.state)

    def has(self, snapshot: str) -> bool:
        """Whether there is memory to a snapshot."""
        return self._path(snapshot).exists()

    def holds(self, name: str, key: bytes) -> bool:
        """Whether something can stand on the memory of this name."""
        return any(_is_sealed(path, name, key) for path in self._holding(name))

    def seal(
        self,
        snapshot: str,
        files: Path,
        facts: Mapping[str, Any],
        key: bytes,
        most_bytes: int | None = None,
        under: Sequence[str] = (),
        disks: KeptDisks = (),
    ) -> None:
        """Keep the files of a directory under a key; there is all of it or nothing.

        `under` are the memories it stands on, the lowest first; one of which there is none yet is
        made of the file of its name in the directory `under` there. `disks` are to stay as well.
        """
        make_private(self._directory)
        own = (entry.name for entry in files.iterdir() if not (under and entry.name == UNDER))
        names = sorted(own)
        sizes = [(name, _plain_size(files / name)) for name in names]
        total_bytes = sum(size for _, size in sizes)
        if most_bytes is not None and total_bytes > most_bytes:
            # Holes count: a file of nothing else would be written out in full.
            raise HostError(
                f"the saved memory has {total_bytes} bytes and may have {most_bytes}; none was kept"
            )
        try:
            stands_on = [
                (name, self._link(snapshot, name, files / UNDER, key).hex()) for name in under
            ]
            reads = [self._keep_disk(snapshot, name, path) for name, path in disks]
            said = {**facts, "files": sizes, "under": stands_on, "disks": reads}
            self._write(self._path(snapshot), snapshot, said, [files / name for name in names], key)
            _sync(self._directory)
        except BaseException:
            self.remove(snapshot)
            raise

    def _link(self, snapshot: str, name: str, plain: Path, key: bytes) -> bytes:
        """Have a memory stay for as long as the snapshot that stands on it; return its salt."""
        path = self._under(snapshot, name)
        for found in self._holding(name):
            with contextlib.suppress(FileNotFoundError):
                os.link(found, path)
                if _is_sealed(path, name, key):
                    return self._salt(path, name, key)
                # Sealed under another key, or damaged.
                path.unlink()
        source = plain / name
        if not source.exists():
            raise HostError(
                f"the memory of {quote(name)}, on which this one stands, was removed meanwhile; "
                "save it again"
            )
        # Called as every other in which it lies, though its own name is another.
        said = {"files": [(LAYERED, _plain_size(source))]}
        self._write(path, name, said, [source], key)
        return self._salt(path, name, key)

    def _keep_disk(self, snapshot: str, name: str, path: Path) -> tuple[str, str, str]:
        """Have a disk stay for as long as the snapshot; return how it is known."""
        try:
            identity = _identity(path)
            with contextlib.suppress(FileExistsError):
                os.link(path, self._disk(snapshot, name))
        except FileNotFoundError:
            raise HostError(
                f"the disk {quote(name)}, which this machine reads, was removed meanwhile; start "
                "it again before its memory is saved"
            ) from None
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # It stays for as long as nobody removes it there, and is missed then.
        return name, str(path), identity

    def disks(self, snapshot: str, facts: Mapping[str, Any]) -> KeptDisks:
        """Return the disks that go with a memory; one that is not there is where it would be."""
        found = []
        for name, path, identity in facts.get("disks", ()):
            kept = self._disk(snapshot, name)
            places = (kept, Path(path))
            there = (place for place in places if place.exists() and _identity(place) == identity)
            found.append((name, next(there, kept.with_suffix(".gone"))))
        return tuple(found)

    def _salt(self, path: Path, name: str, key: bytes) -> bytes:
        with open(path, "rb") as file:
            return open_sealed(file, name, key).salt

    def _write(
        self, path: Path, name: str, facts: Mapping[str, Any], files: Iterable[Path], key: bytes
    ) -> None:
        part = path.with_name(f"{path.stem}.{secrets.token_hex(4)}{_PART}")
        over = bool(facts.get("under"))
        try:
            # Locked while it is written, so that a sweep does not take it for a dead one's.
            with open(take_lock(part, fcntl.LOCK_EX), "wb") as out:
                write_sealed(out, name, facts, files, key, stands_on_others=over)
                part.rename(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def facts(self, snapshot: str, key: bytes) -> dict[str, Any]:
        """Return what was said of the memory when it was saved."""
        with self._open(snapshot) as file:
            return open_sealed(file, snapshot, key).facts

    def unseal(self, snapshot: str, into: Path, key: bytes) -> dict[str, Any]:
        """Write the files into a directory, which is in memory; return what was said of it.

        Those it stands on are in the directory `under` there, each called by its name.
        """
        with self._open(snapshot) as file:
            sealed = open_sealed(file, snapshot, key)
            for name, size in sealed.facts["files"]:
                _write_plain(into / name, sealed.read(size))
        below = sealed.facts.get(UNDER) or ()
        if below:
            (into / UNDER).mkdir(mode=0o700)
        for name, salt in below:
            self._unseal_under(snapshot, name, bytes.fromhex(salt), into / UNDER / name, key)
        return sealed.facts

    def _unseal_under(self, snapshot: str, name: str, salt: bytes, to: Path, key: bytes) -> None:
        path = self._under(snapshot, name)
        if not path.exists():
            raise HostError(
                f"the memory of {quote(snapshot)} stands on that of {quote(name)}, which is not "
                "there any more; remove the snapshot"
            )
        with open(path, "rb") as file:
            sealed = open_sealed(file, name, key)
            if sealed.salt != salt:
                raise HostError(
                    f"the memory of {quote(snapshot)} stands on another {quote(name)} than the "
                    "one that is there; remove the snapshot"
                )
            _write_plain(to, _layered(sealed))

    def remove(self, snapshot: str) -> None:
        """Forget the memory of a snapshot, whose disk stays."""
        remove_memories(self._trees.state, [snapshot])

    def pause(self, name: str, snapshot: str) -> None:
        """Note that a kept sandbox goes on from the memory of its newest snapshot."""
        make_private(self._directory)
        path = self._directory / f"{name}{_PAUSED}"
        written = path.with_name(f"{name}.{secrets.token_hex(4)}{_PART}")
        with open(take_lock(written, fcntl.LOCK_EX), "w") as file:
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
            is_ours = path.suffix in (_SEALED, _UNDER, _DISK)
            is_known = not is_ours or path.name.partition(".")[0] in known
            if path.suffix == _PART:
                _remove_left(path)
            elif not is_known:
                path.unlink(missing_ok=True)

    def _path(self, snapshot: str) -> Path:
        return self._directory / f"{snapshot}{_SEALED}"

    def _under(self, snapshot: str, name: str) -> Path:
        return self._directory / f"{snapshot}.{name}{_UNDER}"

    def _disk(self, snapshot: str, name: str) -> Path:
        return self._directory / f"{snapshot}.{name}{_DISK}"

    def _holding(self, name: str) -> Iterator[Path]:
        """Yield where the memory of a name lies: as its own, or below another."""
        path = self._path(name)
        if path.exists():
            yield path
        yield from sorted(self._directory.glob(f"*.{name}{_UNDER}"))

    def _open(self, snapshot: str) -> IO[bytes]:
        try:
            return open(self._path(snapshot), "rb")
        except FileNotFoundError:
            raise NotFound(
                f"snapshot {quote(snapshot)} has no memory; take one with memory=True",
                what=snapshot,
            ) from None


def _remove_left(part: Path) -> None:
    """Remove what was being written, unless somebody still writes it."""
    with contextlib.suppress(BlockingIOError):
        lock = take_lock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
        part.unlink(missing_ok=True)
        os.close(lock)


def memory_directory(state: Path) -> Path:
    """Return where sealed memory lies."""
    return state / "memory"


def remove_memories(state: Path, snapshots: Iterable[str]) -> None:
    """Remove the memory of snapshots that are no more; what others stand on stays theirs."""
    directory = memory_directory(state)
    for snapshot in snapshots:
        (directory / f"{snapshot}{_SEALED}").unlink(missing_ok=True)
        for suffix in (_UNDER, _DISK):
            for path in directory.glob(f"{snapshot}.*{suffix}"):
                path.unlink(missing_ok=True)


def _identity(path: Path) -> str:
    """Return what tells a disk from another of its name that was made later."""
    status = path.stat()
    return f"{status.st_ino}-{status.st_mtime_ns}"


def _is_sealed(path: Path, name: str, key: bytes) -> bool:
    """Whether it opens under a key, and nobody has taken it away."""
    try:
        with open(path, "rb") as file:
            open_sealed(file, name, key)
    except (FileNotFoundError, HostError):
        return False
    return True


def _layered(sealed: Sealed) -> Iterator[bytes]:
    """Yield the one file of a memory that others stand on."""
    for name, size in sealed.facts["files"]:
        if name == LAYERED:
            yield from sealed.read(size)
            return
        for _ in sealed.read(size):
            continue
    raise HostError(f"the memory of {sealed.name} is of another kind; remove the snapshot")


def _write_plain(path: Path, pieces: Iterable[bytes]) -> None:
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o444), "wb") as out:
        for piece in pieces:
            out.write(piece)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _plain_size(path: Path) -> int:
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise HostError(
            f"the saved memory has {quote(path.name)}, which is no plain file; none was kept"
        )
    return status.st_size
