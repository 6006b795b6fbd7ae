"""The disks of the host's own programs: which is current, without a look at each file every time.

Directories are looked at by every process, which finds whatever package managers do: they replace
files. Files that were overwritten in place are looked for again and again, but not each time: a
host has a hundred thousand of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cloister.errors import CloisterError, HostError
from cloister.runtime.microvm.given_up import current_work
from cloister.runtime.microvm.images import etc_image, write_tree
from cloister.runtime.microvm.place import machine_directory, made_once
from cloister.runtime.namespace.hidden import walk
from cloister.runtime.namespace.rootfs import host_programs

# How old the last look at every file may be.
LOOK_S = 600.0
_NOTE = "programs-"
_ATTEMPTS = 3


class HostDisks:
    """The disks of this host as one process knows them. To be asked in threads."""

    def __init__(self) -> None:
        self._known: dict[str | None, tuple[Path, float]] = {}
        self._looking: set[str | None] = set()
        self._lock = threading.Lock()

    def current(self, source: str | None) -> Path:
        """Return the disk with a directory, or with the public part of /etc.

        One that was found a while ago is returned all the same, and looked for again meanwhile:
        whoever comes next has what was found.
        """
        known, since = self._known.get(source, (None, 0.0))
        if known is None or not known.exists():
            return self._look(source)
        if time.monotonic() - since > LOOK_S:
            self._look_meanwhile(source)
        return known

    def _look(self, source: str | None) -> Path:
        begun = time.monotonic()
        found = etc_image() if source is None else host_disk(Path(source))
        self._known[source] = (found, begun)
        return found

    def _look_meanwhile(self, source: str | None) -> None:
        with self._lock:
            if source in self._looking:
                return
            self._looking.add(source)
        # It ends with the process, and what it has half made is removed by the next who makes it.
        threading.Thread(
            target=self._look_behind, args=(source,), name="cloister-look", daemon=True
        ).start()

    def _look_behind(self, source: str | None) -> None:
        try:
            # No room for another one, for instance: the one there is stays, and is looked at again.
            with suppress(CloisterError, OSError):
                self._look(source)
        finally:
            self._looking.discard(source)


def host_disk(directory: Path) -> Path:
    """Return a disk with what is in a directory of the host, made anew when that has changed."""
    note = machine_directory() / f"{_NOTE}{hashlib.sha256(bytes(directory)).hexdigest()[:16]}"
    known = _read_note(note)
    if known is not None and _shape(known.directories) == known.shape:
        return _disk(directory, known)
    # Before the disk is made: what changes meanwhile is found by the next look.
    found = _look_at(directory)
    disk = _disk(directory, found)
    part = note.with_name(f"{note.name}.{os.getpid()}.{threading.get_ident()}.part")
    part.write_text(json.dumps(found))
    os.rename(part, note)
    return disk


class _Found(NamedTuple):
    """What a look found: a digest of the directories, one of what is in them, and their paths."""

    shape: str
    files: str
    directories: list[str]


def _disk(directory: Path, found: _Found) -> Path:
    """Return the disk that was made of a directory when it was as was found, or make it."""
    return made_once(_name(found), lambda to: _write(directory, to))


def noted_disks(place: Path) -> set[str]:
    """Return the names of the disks that were current when somebody looked last."""
    found = set()
    for note in place.glob(f"{_NOTE}*"):
        with suppress(OSError, ValueError):
            found.add(_name(_noted(note)))
    return found


def _name(found: _Found) -> str:
    return f"host-{found.shape}-{found.files}.img"


def _write(directory: Path, to: Path) -> None:
    """Write a disk without what only root may read: whoever is root in a machine is not this one.

    What came while it was written may be on it; then it is written again.
    """
    hidden = _hidden_in(directory)
    for _ in range(_ATTEMPTS):
        write_tree(directory, to, hidden)
        before, hidden = hidden, _hidden_in(directory)
        if set(hidden) <= set(before):
            return
        to.unlink()
    raise HostError(
        f"{directory} changes while a disk of it is made; try again when nothing is installed"
    )


def _hidden_in(directory: Path) -> tuple[str, ...]:
    """Return the paths below a directory of the host's programs that are not for sandboxes."""
    name = os.fspath(directory).lstrip("/")
    if name not in host_programs()[0]:
        # Somebody has named it to be shown.
        return ()
    found = walk((name,), copied=os.geteuid() != 0).hidden
    return tuple(os.path.relpath(path, name) for path in found)


def _read_note(note: Path) -> _Found | None:
    """Return what was found at the last look at every file, unless that was too long ago."""
    try:
        if not 0 <= time.time() - note.stat().st_mtime < LOOK_S:
            return None
        return _noted(note)
    except (OSError, ValueError):
        # There is none, or one that was cut short: then there is a look.
        return None


def _noted(note: Path) -> _Found:
    shape, files, directories = json.loads(note.read_text())
    return _Found(shape, files, directories)


def _look_at(top: Path) -> _Found:
    """Look at a tree's directories, and at all that is in them."""
    shape, contents = hashlib.sha256(bytes(top)), hashlib.sha256()
    directories, pending = [], [os.fspath(top)]
    work = current_work()
    while pending:
        work.require_wanted()
        path = pending.pop()
        directories.append(path)
        # Before it is read: what changes meanwhile makes it another at the next look.
        shape.update(_directory_facts(path))
        try:
            with os.scandir(path) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            # Not ours to look into, or gone: its own times say as much as can be known.
            continue
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
                continue
            with suppress(FileNotFoundError):
                contents.update(_facts(entry.name, entry.stat(follow_symlinks=False)))
    return _Found(shape.hexdigest()[:32], contents.hexdigest()[:32], directories)


def _shape(directories: list[str]) -> str:
    """Return the digest of directories as they are now, by which also those in them are known.

    None comes or goes without a change of the one it is in, so that none need be read for it.
    """
    shape = hashlib.sha256(os.fsencode(directories[0]))
    for path in directories:
        shape.update(_directory_facts(path))
    return shape.hexdigest()[:32]


def _directory_facts(path: str) -> bytes:
    try:
        return _facts(path, os.lstat(path))
    except FileNotFoundError:
        return os.fsencode(path)


def _facts(name: str, status: os.stat_result) -> bytes:
    # The time of a change cannot be set, as that of the content can.
    times = (status.st_mtime_ns, status.st_ctime_ns)
    facts = (status.st_mode, status.st_uid, status.st_gid, status.st_size, status.st_ino, times)
    return f"{name}\0{facts}\0".encode("utf-8", "surrogateescape")
