"""Writes a parcel from a sandbox to the host: only below its target, following nothing."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from cloister.errors import Exhausted, ProtocolViolation, RequestError
from cloister.model import quote
from cloister.model.links import leads_out
from cloister.sandbox.parcel import (
    DIRECTORY,
    FILE,
    LINK,
    Entry,
    Progress,
    Source,
    Summary,
    content,
    parts_of,
    require_room,
)

MAX_ENTRIES = 1_000_000
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


async def unpack(
    source: Source, target: str | os.PathLike[str], *, limit: int, progress: Progress | None
) -> Summary:
    """Write the parcel to `target`; its parent must exist, nothing outside it is touched.

    Each file is written under another name and then renamed: a reader sees the old or the new.
    Links whose target would lead out of the tree are left out and listed in the summary.
    """
    path = Path(os.path.abspath(target))
    if not path.name:
        raise RequestError("the host's root cannot be the target of a copy")
    try:
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise RequestError(f"{path.parent} cannot be opened: {error.strerror}") from error
    unpacker = _Unpacker(parent, os.fsencode(path.name), source, limit, progress)
    try:
        return await unpacker.run()
    finally:
        unpacker.close()


class _Unpacker:
    def __init__(
        self, parent: int, name: bytes, source: Source, limit: int, progress: Progress | None
    ) -> None:
        self._parent = parent
        self._name = name
        self._source = source
        self._limit = limit
        self._progress = progress
        self._summary = Summary()
        self._top: int | None = None
        # The directories between the top and the entry before, open, with their names.
        self._open: list[tuple[bytes, int]] = []
        self._seen = 0
        # What this copy has made, by inode: two names that are one here must not pass unnoticed.
        self._made: set[int] = set()

    async def run(self) -> Summary:
        while (entry := await self._source.entry()) is not None:
            self._seen += 1
            if self._seen > MAX_ENTRIES:
                raise Exhausted(f"the copy has more than {MAX_ENTRIES} entries", limit="inodes")
            await self._place(entry)
        return self._summary

    async def _place(self, entry: Entry) -> None:
        parts = parts_of(entry.path)
        if not parts:
            await self._place_top(entry)
            return
        if self._top is None:
            raise ProtocolViolation("a parcel with an entry before its top")
        directory = self._walk(parts[:-1])
        name = parts[-1]
        if entry.kind == DIRECTORY:
            self._make_directory(directory, name)
        elif entry.kind == FILE:
            await self._write(directory, name, entry)
        elif entry.kind == LINK:
            self._link(directory, name, entry, len(parts) - 1)

    async def _place_top(self, entry: Entry) -> None:
        if self._seen != 1:
            raise ProtocolViolation("a parcel with two tops")
        if entry.kind == DIRECTORY:
            self._make_directory(self._parent, self._name)
            self._top = os.open(self._name, _DIRECTORY_FLAGS, dir_fd=self._parent)
        elif entry.kind == FILE:
            await self._write(self._parent, self._name, entry)
        else:
            raise ProtocolViolation("a parcel whose top is a link")

    def _walk(self, parts: list[bytes]) -> int:
        """Open the directory of an entry, one component at a time, each without following."""
        common = 0
        while (
            common < len(parts)
            and common < len(self._open)
            and self._open[common][0] == parts[common]
        ):
            common += 1
        while len(self._open) > common:
            os.close(self._open.pop()[1])
        for part in parts[common:]:
            above = self._open[-1][1] if self._open else self._top
            if above is None:
                raise ProtocolViolation("a parcel with an entry before its top")
            try:
                fd = os.open(part, _DIRECTORY_FLAGS, dir_fd=above)
            except OSError as error:
                raise ProtocolViolation(
                    f"a parcel with an entry below something that is no directory: {error.strerror}"
                ) from error
            self._open.append((part, fd))
        if self._open:
            return self._open[-1][1]
        if self._top is None:
            raise ProtocolViolation("a parcel with an entry before its top")
        return self._top

    def _make_directory(self, at: int, name: bytes) -> None:
        # Owners, set-id bits and special modes of the inside mean nothing here: 0755, or less.
        self._require_unused(at, name)
        try:
            os.mkdir(name, 0o755, dir_fd=at)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                raise RequestError(
                    f"{os.fsdecode(name)} exists on the host and is no directory; "
                    "copy to another place"
                ) from None
        self._made.add(os.stat(name, dir_fd=at, follow_symlinks=False).st_ino)

    async def _write(self, at: int, name: bytes, entry: Entry) -> None:
        require_room(entry.size, self._summary.bytes, self._limit)
        draft = b".cloister-" + secrets.token_hex(8).encode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(draft, flags, 0o600, dir_fd=at)
        try:
            async for data in content(self._source, entry.size):
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                self._summary.bytes += len(data)
                if self._progress is not None:
                    self._progress(self._summary.files, self._summary.bytes)
            # As inside, but never writable for others here, and never closed to its owner.
            os.fchmod(fd, (entry.mode & 0o755) | 0o600)
            os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
            self._rename(draft, at, name)
            self._summary.files += 1
        except BaseException:
            os.unlink(draft, dir_fd=at)
            raise
        finally:
            os.close(fd)

    def _rename(self, draft: bytes, at: int, name: bytes) -> None:
        self._require_unused(at, name)
        self._made.add(os.stat(draft, dir_fd=at, follow_symlinks=False).st_ino)
        try:
            os.rename(draft, name, src_dir_fd=at, dst_dir_fd=at)
        except IsADirectoryError:
            raise RequestError(
                f"{os.fsdecode(name)} is a directory on the host; copy to another place"
            ) from None

    def _require_unused(self, at: int, name: bytes) -> None:
        """Refuse a name that this copy has used: said twice, or the same but for case here."""
        try:
            found = os.stat(name, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            return
        if found.st_ino in self._made:
            raise RequestError(
                f"{quote(os.fsdecode(name))} would replace another file of the same copy; "
                "copy to a filesystem that tells such names apart"
            )

    def _link(self, at: int, name: bytes, entry: Entry, depth: int) -> None:
        if leads_out(entry.target, depth):
            target = quote(os.fsdecode(entry.target))
            self._summary.skip(os.fsdecode(entry.path), f"link to {target}, outside the tree")
            return
        draft = b".cloister-" + secrets.token_hex(8).encode()
        os.symlink(entry.target, draft, dir_fd=at)
        try:
            self._rename(draft, at, name)
        except BaseException:
            os.unlink(draft, dir_fd=at)
            raise

    def close(self) -> None:
        for _, fd in self._open:
            os.close(fd)
        if self._top is not None:
            os.close(self._top)
        os.close(self._parent)
