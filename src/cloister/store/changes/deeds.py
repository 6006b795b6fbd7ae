"""The single acts of an apply: each can be done, and undone whether or not it was done."""

from __future__ import annotations

import base64
import errno
import json
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from cloister.errors import HostError, RequestError
from cloister.model.changes import escape
from cloister.store.changes.descent import DIRECTORY_FLAGS, stat_at
from cloister.store.changes.host_tree import HostTree, last_of
from cloister.store.changes.staging import Staging

# Until everything is in it; only then does a directory get the mode that it shall have.
MODE_MEANWHILE = 0o700


class Verb(StrEnum):
    """What a deed does to its path."""

    REMOVE = "remove"
    REMOVE_DIRECTORY = "remove-directory"
    MAKE_DIRECTORY = "make-directory"
    CREATE = "create"
    REPLACE = "replace"
    SET_MODE = "set-mode"


@dataclass(frozen=True, slots=True)
class Deed:
    """One act. `number` names its files in the staging directory.

    `inode` and `mtime_ns` are those of what is put in place, the old ones of what was there (for
    a directory only the inode); `mode` is a directory's afterwards, `old_mode`, `uid` and `gid`
    were its own before.
    """

    verb: Verb
    path: bytes
    number: int
    inode: int = 0
    mtime_ns: int = 0
    old_inode: int = 0
    old_mtime_ns: int = 0
    mode: int = 0
    old_mode: int = 0
    uid: int = -1
    gid: int = -1

    def line(self) -> bytes:
        """Return the deed as a line of a journal."""
        found = {name: getattr(self, name) for name in self.__slots__}
        found["path"] = base64.b64encode(self.path).decode()
        return json.dumps(found).encode() + b"\n"


def parse_journal(text: bytes) -> list[Deed]:
    """Return the deeds of a journal; everything in it may have been written by somebody else."""
    try:
        found = []
        for line in text.splitlines():
            values = json.loads(line)
            path = base64.b64decode(values.pop("path"), validate=True)
            require_inside(path)
            verb = Verb(values.pop("verb"))
            numbers = {name: int(value) for name, value in values.items()}
            found.append(Deed(verb, path, **numbers))
        return found
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise HostError(f"the journal of an interrupted apply cannot be read: {error}") from error


def require_inside(path: bytes) -> None:
    """Raise ValueError for a path that is not relative to a tree, or leads out of it."""
    if b"\0" in path or any(name in (b"", b".", b"..") for name in path.split(b"/")):
        raise ValueError("a path leads out of the tree")


def do(deed: Deed, tree: HostTree, staging: Staging) -> None:
    """Do one deed; what is there must still be what it was when it was looked at."""
    directory = tree.directory_of(deed.path)
    if directory is None:
        raise RequestError(f"{escape(deed.path)}: its directory is gone from the host")
    name, staged = last_of(deed.path), staging.name(deed.number)
    _require_unchanged(deed, directory, name)
    match deed.verb:
        case Verb.REMOVE:
            os.rename(name, staged, src_dir_fd=directory, dst_dir_fd=staging.old)
        case Verb.REMOVE_DIRECTORY:
            os.rmdir(name, dir_fd=directory)
        case Verb.MAKE_DIRECTORY:
            os.mkdir(name, MODE_MEANWHILE, dir_fd=directory)
        case Verb.CREATE:
            # A link and not a rename: it never replaces what came there meanwhile.
            if not _link(staged, staging.new, name, directory):
                os.rename(staged, name, src_dir_fd=staging.new, dst_dir_fd=directory)
        case Verb.REPLACE:
            # The old keeps a second name, so that there is no moment without one or the other.
            if not _link(name, directory, staged, staging.old):
                os.rename(name, staged, src_dir_fd=directory, dst_dir_fd=staging.old)
            os.rename(staged, name, src_dir_fd=staging.new, dst_dir_fd=directory)
        case Verb.SET_MODE:
            _set_mode(directory, name, deed.mode)


def _require_unchanged(deed: Deed, directory: int, name: bytes) -> None:
    status = stat_at(directory, name)
    is_same = deed.old_inode == (0 if status is None else status.st_ino)
    if is_same and status is not None and deed.old_mtime_ns:
        is_same = status.st_mtime_ns == deed.old_mtime_ns
    if not is_same and deed.verb is not Verb.SET_MODE:
        raise RequestError(
            f"{escape(deed.path)} was changed on the host meanwhile; look at the changes again"
        )


def _link(source: bytes, source_directory: int, target: bytes, target_directory: int) -> bool:
    """Give a file a second name; False where the filesystem or the file's owner forbid that."""
    try:
        os.link(
            source,
            target,
            src_dir_fd=source_directory,
            dst_dir_fd=target_directory,
            follow_symlinks=False,
        )
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
            return False
        raise
    return True


def _set_mode(directory: int, name: bytes, mode: int) -> None:
    handle = os.open(name, DIRECTORY_FLAGS, dir_fd=directory)
    try:
        os.fchmod(handle, mode)
    finally:
        os.close(handle)


def undo(deeds: Iterable[Deed], tree: HostTree, staging: Staging) -> None:
    """Undo all that was done of these deeds, the last first."""
    for deed in reversed(list(deeds)):
        directory = tree.directory_of(deed.path)
        # Without its directory it was not done yet, or is undone with it.
        if directory is not None:
            _undo(deed, directory, last_of(deed.path), staging)


def _undo(deed: Deed, directory: int, name: bytes, staging: Staging) -> None:
    staged = staging.name(deed.number)
    here = stat_at(directory, name)
    match deed.verb:
        case Verb.REMOVE | Verb.REPLACE:
            if stat_at(staging.old, staged) is None:
                return
            if here is not None and here.st_ino != deed.old_inode:
                _require_ours(deed, here)
            os.rename(staged, name, src_dir_fd=staging.old, dst_dir_fd=directory)
        case Verb.CREATE:
            if here is not None and here.st_ino == deed.inode:
                _require_ours(deed, here)
                os.unlink(name, dir_fd=directory)
        case Verb.MAKE_DIRECTORY:
            if here is not None and stat.S_ISDIR(here.st_mode):
                os.rmdir(name, dir_fd=directory)
        case Verb.REMOVE_DIRECTORY:
            if here is None:
                os.mkdir(name, MODE_MEANWHILE, dir_fd=directory)
                _set_mode(directory, name, deed.old_mode & 0o7777)
                # Only a root can give it back to somebody else; in a namespace not even to all.
                with suppress(OSError):
                    os.chown(name, deed.uid, deed.gid, dir_fd=directory, follow_symlinks=False)
        case Verb.SET_MODE:
            if here is not None and here.st_mode == stat.S_IFDIR | deed.mode:
                _set_mode(directory, name, deed.old_mode & 0o7777)


def _require_ours(deed: Deed, here: os.stat_result) -> None:
    if here.st_ino != deed.inode or here.st_mtime_ns != deed.mtime_ns:
        raise HostError(
            f"{escape(deed.path)} was changed since an apply was interrupted; "
            "move it away, and apply again to have the old one back"
        )
