"""Trees of files as a stream. What comes out of a sandbox is unpacked by descriptor, never by path.

Each entry is `u8 kind | u32 mode | i64 mtime | u64 size | path | target` and, for a file, its
content; kind 0 ends the stream. The other end is the guest's clerk.
"""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from cloister.errors import Exhausted, NotFound, ProtocolViolation, RequestError
from cloister.model import format_bytes, quote
from cloister.wire import Writer

END, FILE, DIRECTORY, LINK = range(4)
_HEAD = 21
MAX_PATH = 4096
_CHUNK = 1024 * 1024
# One descriptor is open for each directory on the way down.
_MAX_DEPTH = 256
_MAX_SKIPPED = 1000

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """The header of one thing in a parcel."""

    kind: int
    mode: int
    mtime_ns: int
    size: int
    path: bytes
    target: bytes


@dataclass(slots=True)
class Summary:
    """What a copy did: files and bytes copied, and what was left out with the reason.

    `skipped` holds the first thousand that were left out, `skipped_total` counts all.
    """

    files: int = 0
    bytes: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    skipped_total: int = 0

    def skip(self, path: str, why: str) -> None:
        """Note what was left out. The guest chooses how many there are, and how long."""
        self.skipped_total += 1
        if len(self.skipped) < _MAX_SKIPPED:
            self.skipped.append((path, why))


def encode_entry(entry: Entry) -> bytes:
    """Return the header's bytes."""
    w = Writer().u8(entry.kind).u32(entry.mode).i64(entry.mtime_ns).u64(entry.size)
    return w.bytes(entry.path).bytes(entry.target).done()


def packed(source: str | os.PathLike[str], summary: Summary) -> Iterator[bytes]:
    """Return a parcel of a host file or directory that can be read, or say why it cannot."""
    try:
        parcel = pack(source, summary)
        return chain([next(parcel)], parcel)
    except FileNotFoundError:
        raise NotFound(f"{source} does not exist on the host", what=str(source)) from None
    except OSError as error:
        raise RequestError(f"{source} cannot be read: {error.strerror}") from error


def pack(source: str | os.PathLike[str], summary: Summary) -> Iterator[bytes]:
    """Yield a parcel of a host file or directory. Links stay links; devices are left out."""
    top = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(top)
        if stat.S_ISDIR(status.st_mode):
            yield encode_entry(_entry(DIRECTORY, status, b""))
            yield from _pack_directory(top, summary)
        elif stat.S_ISREG(status.st_mode):
            yield from _pack_file(top, status, b"", summary)
        else:
            summary.skip(os.fsdecode(source), "neither a file nor a directory")
    finally:
        os.close(top)
    yield bytes((END,))


def _pack_directory(top: int, summary: Summary) -> Iterator[bytes]:
    # A stack and not a recursion: a tree may be deeper than Python's own stack.
    stack = [(top, b"", _names(top))]
    try:
        while stack:
            directory, prefix, names = stack[-1]
            name = next(names, None)
            if name is None:
                stack.pop()
                if stack:
                    os.close(directory)
                continue
            path = prefix + b"/" + name if prefix else name
            link, fd = _open_entry(directory, name, path, summary)
            if link is not None:
                yield encode_entry(link)
            if fd is None:
                continue
            status = os.fstat(fd)
            if stat.S_ISDIR(status.st_mode) and len(stack) < _MAX_DEPTH:
                stack.append((fd, path, _names(fd)))
                yield encode_entry(_entry(DIRECTORY, status, path))
                continue
            try:
                if stat.S_ISREG(status.st_mode):
                    yield from _pack_file(fd, status, path, summary)
                else:
                    summary.skip(os.fsdecode(path), f"deeper than {_MAX_DEPTH} directories")
            finally:
                os.close(fd)
    finally:
        for directory, _, _ in stack[1:]:
            os.close(directory)


def _names(directory: int) -> Iterator[bytes]:
    return iter(sorted(map(os.fsencode, os.listdir(directory))))


def _open_entry(
    directory: int, name: bytes, path: bytes, summary: Summary
) -> tuple[Entry | None, int | None]:
    """Return a link as an entry, a file or directory opened, or neither with a word in summary."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(name, dir_fd=directory)
            return _entry(LINK, status, path, target=target), None
        if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            return None, os.open(name, flags, dir_fd=directory)
        summary.skip(os.fsdecode(path), "neither a file nor a directory")
    except OSError as error:
        summary.skip(os.fsdecode(path), error.strerror or str(error))
    return None, None


def _pack_file(fd: int, status: os.stat_result, path: bytes, summary: Summary) -> Iterator[bytes]:
    left = status.st_size
    yield encode_entry(_entry(FILE, status, path, size=left))
    while left:
        # The size was promised: a file that grows meanwhile is cut, one that shrinks is padded.
        data = os.read(fd, min(left, _CHUNK)) or bytes(min(left, _CHUNK))
        yield data
        left -= len(data)
        summary.bytes += len(data)
    summary.files += 1


def _entry(
    kind: int, status: os.stat_result, path: bytes, *, size: int = 0, target: bytes = b""
) -> Entry:
    return Entry(kind, status.st_mode & 0o777, status.st_mtime_ns, size, path, target)


class Source:
    """Exact reads from a stream of chunks that somebody hostile wrote."""

    def __init__(self, read: Callable[[], Awaitable[bytes]]) -> None:
        self._read = read
        self._pending = b""
        # Where the rest of `_pending` begins: cutting it anew for each field would copy it often.
        self._at = 0

    async def exactly(self, count: int) -> bytes:
        """Return `count` bytes; the end before that is a violation."""
        while len(self._pending) - self._at < count:
            chunk = await self._read()
            if not chunk:
                raise ProtocolViolation("a parcel ended in the middle")
            self._pending = self._pending[self._at :] + chunk
            self._at = 0
        return self._take(count)

    async def up_to(self, count: int) -> bytes:
        """Return between 1 and `count` bytes."""
        if self._at == len(self._pending):
            self._pending, self._at = await self._read(), 0
            if not self._pending:
                raise ProtocolViolation("a parcel ended in the middle")
        return self._take(count)

    def _take(self, count: int) -> bytes:
        taken = self._pending[self._at : self._at + count]
        self._at += len(taken)
        return taken

    async def entry(self) -> Entry | None:
        """Return the next header, checked; None at the end of the parcel."""
        kind = (await self.exactly(1))[0]
        if kind == END:
            return None
        if kind not in (FILE, DIRECTORY, LINK):
            raise ProtocolViolation(f"entry of unknown kind {kind} in a parcel")
        head = await self.exactly(_HEAD - 1)
        mode = int.from_bytes(head[:4], "little") & 0o777
        mtime = int.from_bytes(head[4:12], "little", signed=True)
        size = int.from_bytes(head[12:20], "little")
        path, target = await self._name(), await self._name()
        if kind != FILE and size:
            raise ProtocolViolation("a directory or a link with content in a parcel")
        return Entry(kind, mode, mtime, size, path, target)

    async def _name(self) -> bytes:
        length = int.from_bytes(await self.exactly(4), "little")
        if length > MAX_PATH:
            raise ProtocolViolation(f"name of {length} bytes in a parcel; the limit is {MAX_PATH}")
        return await self.exactly(length) if length else b""


def parts_of(path: bytes) -> list[bytes]:
    """Return the components of a relative name that cannot lead anywhere else."""
    if not path:
        return []
    parts = path.split(b"/")
    if any(part in (b"", b".", b"..") or b"\0" in part or len(part) > 255 for part in parts):
        raise ProtocolViolation(f"name {quote(os.fsdecode(path))} in a parcel leads elsewhere")
    return parts


async def content(source: Source, size: int) -> AsyncIterator[bytes]:
    """Yield the content of the file whose header was just read."""
    left = size
    while left:
        data = await source.up_to(min(left, _CHUNK))
        left -= len(data)
        yield data


def require_room(size: int, used: int, limit: int) -> None:
    """Refuse a file whose promised size goes over the limit, before a byte of it is read."""
    if used + size > limit:
        raise Exhausted(
            f"the copy would take more than {format_bytes(limit)} on this side "
            f"({format_bytes(used + size)} so far); raise limit=",
            limit="disk",
        )
