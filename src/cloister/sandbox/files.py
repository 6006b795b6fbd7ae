"""The sandbox's files: every operation is done inside, by a process under the sandbox's user."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import TYPE_CHECKING

from cloister.errors import (
    Exhausted,
    NotFound,
    ProtocolViolation,
    RequestError,
)
from cloister.model import User, quote
from cloister.sandbox.content import Content, PathLike, content_chunks, encode_path, require_content
from cloister.sandbox.entries import (
    Change,
    Entry,
    explain,
    parse_change,
    parse_entry,
    require_name,
)
from cloister.sandbox.errand import Errand
from cloister.sandbox.parcel import Progress, Source, Summary, packed
from cloister.sandbox.unpack import unpack
from cloister.wire import Reader
from cloister.wire.messages import Flag, Operation

if TYPE_CHECKING:
    from cloister.sandbox.sandbox import Sandbox

_MAX_RECORD = 16 * 1024
_DEFAULT_READ = 64 * 1024 * 1024
_DEFAULT_ENTRIES = 100_000

# What copy_out writes at most of a sandbox whose disk has no limit.
_MOST_OUT_BYTES = 16 * 2**30


class Files:
    """File operations of one sandbox; `sandbox.files`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def read(
        self, path: PathLike, *, limit: int = _DEFAULT_READ, user: str | int | User | None = None
    ) -> bytes:
        """Return a file's content; more than `limit` bytes is an error (64 MiB unless told)."""
        if limit < 0:
            raise RequestError(f"limit is {limit}; it cannot be negative")
        parts = []
        size = 0
        async with contextlib.aclosing(self.stream(path, user=user)) as chunks:
            async for chunk in chunks:
                size += len(chunk)
                if size > limit:
                    raise Exhausted(
                        f"{quote(str(path))} is larger than {limit} bytes; "
                        "raise limit=, or use stream()",
                        limit="output",
                    )
                parts.append(chunk)
        return b"".join(parts)

    async def read_text(
        self, path: PathLike, *, limit: int = _DEFAULT_READ, user: str | int | User | None = None
    ) -> str:
        """Return a file's content as text; bytes that are not UTF-8 become U+FFFD."""
        return (await self.read(path, limit=limit, user=user)).decode("utf-8", "replace")

    async def stream(
        self,
        path: PathLike,
        *,
        offset: int = 0,
        length: int = 0,
        user: str | int | User | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Yield a file's content in chunks, from `offset`, at most `length` bytes if given."""
        errand = self._errand(Operation.READ, path, user, offset=offset, length=length)
        async with errand:
            errand.content_bytes = 0
            async for chunk in errand.chunks():
                errand.content_bytes += len(chunk)
                yield chunk
            await self._done(errand, path)

    async def write(
        self,
        path: PathLike,
        content: Content,
        *,
        mode: int = 0o644,
        parents: bool = True,
        user: str | int | User | None = None,
    ) -> None:
        """Write a file: complete and new, or not at all. Missing directories are made."""
        flags = Flag.PARENTS if parents else 0
        await self._send(path, content, mode, flags, user)

    async def append(
        self, path: PathLike, content: Content, *, user: str | int | User | None = None
    ) -> None:
        """Add to the end of a file, made if it is not there."""
        await self._send(path, content, 0o644, Flag.APPEND | Flag.PARENTS, user)

    async def _send(
        self, path: PathLike, content: Content, mode: int, flags: int, user: str | int | User | None
    ) -> None:
        require_content(content)
        errand = self._errand(Operation.WRITE, path, user, mode=mode, flags=flags)
        async with errand:
            errand.content_bytes = 0
            async for chunk in content_chunks(content):
                errand.content_bytes += len(chunk)
                if not await errand.give(len(chunk).to_bytes(4, "little") + chunk):
                    break
            else:
                await errand.give(bytes(4))
            errand.input.close()
            await self._done(errand, path)

    async def list(
        self,
        path: PathLike = "/workspace",
        *,
        limit: int = _DEFAULT_ENTRIES,
        user: str | int | User | None = None,
    ) -> list[Entry]:
        """Return the entries of a directory, by name; at most `limit` of them."""
        errand = self._errand(Operation.LIST, path, user, length=limit)
        entries = []
        async with errand:
            async for record in self._records(errand):
                entries.append(require_name(parse_entry(record)))
                if len(entries) > limit:
                    raise ProtocolViolation(f"a listing of more than {limit} entries")
            await self._done(errand, path)
        return sorted(entries, key=lambda entry: entry.name)

    async def stat(
        self, path: PathLike, *, follow: bool = True, user: str | int | User | None = None
    ) -> Entry:
        """Return what is at a path; of a link itself with `follow=False`."""
        errand = self._errand(Operation.STAT, path, user, flags=Flag.FOLLOW if follow else 0)
        found = None
        async with errand:
            async for record in self._records(errand):
                found = parse_entry(record)
            await self._done(errand, path)
        if found is None:
            raise ProtocolViolation("the guest answered without an entry")
        return found

    async def exists(self, path: PathLike, *, user: str | int | User | None = None) -> bool:
        """Whether anything is at a path."""
        try:
            await self.stat(path, follow=False, user=user)
        except NotFound:
            return False
        return True

    async def make(
        self,
        path: PathLike,
        *,
        mode: int = 0o755,
        parents: bool = True,
        user: str | int | User | None = None,
    ) -> None:
        """Make a directory and, with `parents`, those above it; then one that exists is fine."""
        flags = Flag.PARENTS if parents else 0
        await self._simple(Operation.MAKE, path, user, mode=mode, flags=flags)

    async def move(
        self,
        path: PathLike,
        target: PathLike,
        *,
        replace: bool = False,
        user: str | int | User | None = None,
    ) -> None:
        """Rename; an existing target is an error unless `replace`."""
        flags = Flag.REPLACE if replace else 0
        await self._simple(Operation.MOVE, path, user, other=encode_path(target), flags=flags)

    async def remove(
        self, path: PathLike, *, recursive: bool = False, user: str | int | User | None = None
    ) -> None:
        """Remove a file or an empty directory, or a whole tree with `recursive`."""
        flags = Flag.RECURSIVE if recursive else 0
        await self._simple(Operation.REMOVE, path, user, flags=flags)

    async def copy_in(
        self,
        source: PathLike,
        target: PathLike,
        *,
        progress: Progress | None = None,
        user: str | int | User | None = None,
    ) -> Summary:
        """Copy a host file or directory to `target` inside. Links stay links."""
        summary = Summary()
        parcel = packed(source, summary)
        errand = self._errand(Operation.PUT, target, user)
        errand.elsewhere = source
        async with errand:
            for chunk in parcel:
                if not await errand.give(chunk):
                    break
                if progress is not None:
                    progress(summary.files, summary.bytes)
            errand.content_bytes = summary.bytes
            errand.input.close()
            await self._done(errand, target)
        return summary

    async def copy_out(
        self,
        source: PathLike,
        target: PathLike,
        *,
        limit: int | None = None,
        progress: Progress | None = None,
        user: str | int | User | None = None,
    ) -> Summary:
        """Copy a file or directory from inside to `target` on the host, following nothing.

        `limit` is the most bytes to write here; unless told, the sandbox's disk limit, or 16 GiB
        where its disk has none.
        """
        most = self._most_out(limit)
        errand = self._errand(Operation.GET, source, user)
        errand.elsewhere = target
        async with errand:
            try:
                summary = await unpack(Source(errand.read), target, limit=most, progress=progress)
            except ProtocolViolation:
                # A parcel that breaks off because the guest could not read is the guest's error.
                await self._done(errand, source)
                raise
            except OSError as error:
                raise RequestError(f"{target} cannot be written: {error.strerror}") from error
            errand.content_bytes = summary.bytes
            await self._done(errand, source)
        return summary

    def _most_out(self, limit: int | None) -> int:
        disk = self._sandbox.policy.limits.disk
        return limit if limit is not None else _MOST_OUT_BYTES if disk is None else disk

    async def put_parcel(
        self,
        target: PathLike,
        parcel: AsyncIterable[bytes],
        *,
        user: str | int | User | None = None,
    ) -> None:
        """Unpack inside what `copy_in` packs, when it was packed elsewhere."""
        errand = self._errand(Operation.PUT, target, user)
        async with errand:
            errand.content_bytes = 0
            async for chunk in parcel:
                errand.content_bytes += len(chunk)
                if not await errand.give(chunk):
                    break
            errand.input.close()
            await self._done(errand, target)

    async def get_parcel(
        self, source: PathLike, *, user: str | int | User | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield what `copy_out` unpacks, to be unpacked elsewhere."""
        errand = self._errand(Operation.GET, source, user)
        async with errand:
            errand.content_bytes = 0
            async for chunk in errand.chunks():
                errand.content_bytes += len(chunk)
                yield chunk
            await self._done(errand, source)

    async def watch(
        self,
        path: PathLike = "/workspace",
        *,
        recursive: bool = True,
        ready: asyncio.Event | None = None,
        user: str | int | User | None = None,
    ) -> AsyncGenerator[Change, None]:
        """Yield changes under a directory until the loop over them ends.

        `ready`, if given, is set once every change from then on will be seen.
        """
        flags = Flag.RECURSIVE if recursive else 0
        errand = self._errand(Operation.WATCH, path, user, flags=flags)
        async with errand:
            async for record in self._records(errand):
                change = parse_change(record)
                if change is not None:
                    yield change
                elif ready is not None:
                    ready.set()
            await self._done(errand, path)

    async def space(self) -> tuple[int, int, int]:
        """Return (bytes, inodes) used on the sandbox's disk, and how many processes there are."""
        errand = self._errand(Operation.SPACE, "/", None)
        data = b""
        async with errand:
            async for chunk in errand.chunks():
                data += chunk
                if len(data) > 48:
                    raise ProtocolViolation("too long an answer about the disk")
            await self._done(errand, "/")
        r = Reader(data)
        size, blocks, free, inodes, free_inodes, processes = (r.u64() for _ in range(6))
        return (blocks - free) * size, inodes - free_inodes, processes

    async def _simple(
        self,
        operation: Operation,
        path: PathLike,
        user: str | int | User | None,
        *,
        other: bytes = b"",
        mode: int = 0,
        flags: int = 0,
    ) -> None:
        errand = self._errand(operation, path, user, other=other, mode=mode, flags=flags)
        async with errand:
            await self._done(errand, path)

    def _errand(
        self,
        operation: Operation,
        path: PathLike,
        user: str | int | User | None,
        *,
        other: bytes = b"",
        mode: int = 0,
        flags: int = 0,
        offset: int = 0,
        length: int = 0,
    ) -> Errand:
        if min(mode, offset, length) < 0 or max(offset, length) >= 2**63 or mode > 0o7777:
            raise RequestError(
                "mode, offset, length and limit cannot be negative; a mode is at most 0o7777, "
                "the others are less than 2**63"
            )
        who = self._sandbox.permitted(user)
        return Errand(
            self._sandbox,
            operation,
            who,
            encode_path(path),
            other=other,
            mode=mode,
            flags=flags,
            offset=offset,
            length=length,
        )

    async def _records(self, errand: Errand) -> AsyncIterator[bytes]:
        pending = b""
        async for chunk in errand.chunks():
            pending += chunk
            at = 0
            while len(pending) - at >= 4:
                length = int.from_bytes(pending[at : at + 4], "little")
                if length > _MAX_RECORD:
                    raise ProtocolViolation(f"record of {length} bytes; the limit is {_MAX_RECORD}")
                if len(pending) - at < 4 + length:
                    break
                yield pending[at + 4 : at + 4 + length]
                at += 4 + length
            pending = pending[at:]
        if pending and await errand.wait() is None:
            raise ProtocolViolation("a record ended in the middle")

    async def _done(self, errand: Errand, path: PathLike) -> None:
        failed = await errand.wait()
        if failed is not None:
            raise explain(failed.errno, os.fsdecode(failed.detail) or str(path))
