"""The sandbox's files, without `await`."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, cast

from cloister.blocking.loop import Loop
from cloister.blocking.turn import iterate, iterates, waits
from cloister.model import User
from cloister.sandbox import Change
from cloister.sandbox import files as asynchronous

if TYPE_CHECKING:
    from cloister.blocking.sandbox import Sandbox


class Files:
    """File operations of one sandbox; `sandbox.files`."""

    def __init__(self, sandbox: Sandbox, inner: asynchronous.Files) -> None:
        self._sandbox, self._inner = sandbox, inner

    @property
    def _loop(self) -> Loop:
        return self._sandbox._loop

    read = waits(asynchronous.Files.read)
    read_text = waits(asynchronous.Files.read_text)
    stream = iterates(asynchronous.Files.stream)
    list = waits(asynchronous.Files.list)
    stat = waits(asynchronous.Files.stat)
    exists = waits(asynchronous.Files.exists)
    make = waits(asynchronous.Files.make)
    move = waits(asynchronous.Files.move)
    remove = waits(asynchronous.Files.remove)
    copy_in = waits(asynchronous.Files.copy_in)
    copy_out = waits(asynchronous.Files.copy_out)
    space = waits(asynchronous.Files.space)

    def write(
        self,
        path: str | os.PathLike[str],
        content: bytes | str | Iterable[bytes],
        *,
        mode: int = 0o644,
        parents: bool = True,
        user: str | int | User | None = None,
    ) -> None:
        """Write a file: complete and new, or not at all. Missing directories are made."""
        given = _content(content)
        self._loop.wait(self._inner.write(path, given, mode=mode, parents=parents, user=user))

    def append(
        self,
        path: str | os.PathLike[str],
        content: bytes | str | Iterable[bytes],
        *,
        user: str | int | User | None = None,
    ) -> None:
        """Add to the end of a file, made if it is not there."""
        self._loop.wait(self._inner.append(path, _content(content), user=user))

    def watch(
        self,
        path: str | os.PathLike[str] = "/workspace",
        *,
        recursive: bool = True,
        ready: threading.Event | None = None,
        user: str | int | User | None = None,
    ) -> Iterator[Change]:
        """Yield changes under a directory until the loop over them ends.

        `ready`, if given, is set once every change from then on will be seen.
        """
        # Both kinds of event are told by set(), and nothing else is done to it inside.
        event = cast("asyncio.Event | None", ready)
        changes = self._inner.watch(path, recursive=recursive, ready=event, user=user)
        return iterate(self._loop, changes)


def _content(content: bytes | str | Iterable[bytes]) -> bytes | str | AsyncIterable[bytes]:
    """Let the caller's own iterator run outside the loop: it may block, or call us again."""
    if isinstance(content, str | bytes | bytearray | memoryview):
        return cast("bytes | str", content)
    return _from_thread(iter(content))


async def _from_thread(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
        yield chunk
