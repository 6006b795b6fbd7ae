"""The watches of one sandbox: changes of files as events, streamed or kept until they are asked."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import secrets
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

from cloister.e2b.entry_info import entry_info
from cloister.e2b.people import Person
from cloister.e2b.refusal import CallRefused
from cloister.errors import CloisterError, NotFound
from cloister.sandbox import Change, Sandbox

Event = dict[str, Any]

_MAXIMUM_WATCHES = 64
_MAXIMUM_HELD = 10_000
# How long an upload waits for the watches above it to have seen it.
_SEEN_S = 0.3
_KINDS = {
    "created": "EVENT_TYPE_CREATE",
    "changed": "EVENT_TYPE_WRITE",
    "removed": "EVENT_TYPE_REMOVE",
    "moved-from": "EVENT_TYPE_RENAME",
    "moved-to": "EVENT_TYPE_CREATE",
    "mode": "EVENT_TYPE_CHMOD",
}
_WITH_ENTRY = frozenset({"EVENT_TYPE_CREATE", "EVENT_TYPE_WRITE", "EVENT_TYPE_CHMOD"})
# What an upload looks like elsewhere: the file appears, gets its owner, and is filled.
NEW_FILE = ("EVENT_TYPE_CREATE", "EVENT_TYPE_CHMOD", "EVENT_TYPE_WRITE")
OLD_FILE = ("EVENT_TYPE_WRITE",)
NEW_DIRECTORY = ("EVENT_TYPE_CREATE",)


class Watches:
    """All watches of one sandbox, and what is about to be done under them."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._watches: dict[str, Watch] = {}

    async def open(self, path: str, person: Person, *, recursive: bool, entries: bool) -> Watch:
        """Begin to watch a directory; returns once every change from now on is seen."""
        if len(self._watches) >= _MAXIMUM_WATCHES:
            raise CallRefused(
                "resource_exhausted", f"{_MAXIMUM_WATCHES} watches are open; remove one first"
            )
        found = await self._sandbox.files.stat(path, user=person.user)
        if found.kind.value != "directory":
            raise CallRefused("invalid_argument", f"path {path} is not a directory")
        watch = Watch(self._sandbox, path, person, recursive=recursive, entries=entries)
        self._watches[watch.id] = watch
        try:
            await watch.ready()
        except BaseException:
            await self.remove(watch.id)
            raise
        return watch

    def find(self, id: str) -> Watch:
        """Return one of them."""
        watch = self._watches.get(id)
        if watch is None:
            raise CallRefused("not_found", f"watcher {id[:64]} not found")
        return watch

    async def remove(self, id: str) -> None:
        """End one of them."""
        watch = self._watches.pop(id, None)
        if watch is None:
            raise CallRefused("not_found", f"watcher {id[:64]} not found")
        await watch.close()

    async def close(self) -> None:
        """End all of them."""
        for id in list(self._watches):
            await self.remove(id)

    def cover(self, path: str) -> bool:
        """Whether any of them would see a change of this path."""
        return any(watch.covers(path) for watch in self._watches.values())

    @contextlib.asynccontextmanager
    async def expecting(self, path: str, events: tuple[str, ...]) -> AsyncIterator[None]:
        """Do something to a path that its watches tell as these events, before this returns."""
        watches = [watch for watch in self._watches.values() if watch.covers(path)]
        for watch in watches:
            watch.expect(path, events)
        try:
            yield
        except BaseException:
            for watch in watches:
                watch.unexpect(path)
            raise
        for watch in watches:
            await watch.wait_seen(path)


class _Expected:
    """What is about to be done to a path: how it is told, and whether that was and is over."""

    def __init__(self, events: tuple[str, ...]) -> None:
        self.events = events
        self.is_told = False
        self.over = asyncio.Event()


class Watch:
    """One watched directory. Its events are held until they are taken."""

    def __init__(
        self, sandbox: Sandbox, path: str, person: Person, *, recursive: bool, entries: bool
    ) -> None:
        self.id = secrets.token_hex(8)
        self._sandbox = sandbox
        self._path = path
        self._person = person
        self._is_recursive = recursive
        self._has_entries = entries
        self._events: deque[Event] = deque(maxlen=_MAXIMUM_HELD)
        self._came = asyncio.Event()
        self._expected: dict[str, _Expected] = {}
        self._ready = asyncio.Event()
        self._failure: CloisterError | None = None
        self._following = asyncio.ensure_future(self._follow())

    async def ready(self) -> None:
        """Return once it sees everything, or raise why it cannot."""
        ready = asyncio.ensure_future(self._ready.wait())
        await asyncio.wait({ready, self._following}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if not self._ready.is_set():
            raise self._failure or NotFound(f"{self._path} is gone", what=self._path)

    def covers(self, path: str) -> bool:
        """Whether a change of this path is one of its events."""
        if self._is_recursive:
            return path.startswith(self._path.rstrip("/") + "/")
        return posixpath.dirname(path) == self._path

    def take(self) -> list[Event]:
        """Return what happened since the last time."""
        events = list(self._events)
        self._events.clear()
        if not events and self._failure is not None:
            raise self._failure
        return events

    async def next(self) -> list[Event]:
        """Wait for something to happen; an empty list is the end."""
        while not self._events:
            if self._following.done():
                if self._failure is not None:
                    raise self._failure
                return []
            self._came.clear()
            await self._came.wait()
        return self.take()

    def expect(self, path: str, events: tuple[str, ...]) -> None:
        """Tell the next change of a path as these events."""
        self._expected[path] = _Expected(events)

    def unexpect(self, path: str) -> None:
        """It did not happen."""
        self._expected.pop(path, None)

    async def wait_seen(self, path: str) -> None:
        """Return when what was expected has been told."""
        expected = self._expected.get(path)
        if expected is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SEEN_S):
                await expected.over.wait()
        if not expected.is_told:
            # Made inside a directory that is newer than the look at it.
            await self._tell(path, expected.events)
        self._expected.pop(path, None)

    async def close(self) -> None:
        """End it."""
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        self._came.set()

    async def _follow(self) -> None:
        changes = self._sandbox.files.watch(
            self._path, recursive=self._is_recursive, ready=self._ready, user=self._person.user
        )
        try:
            async with contextlib.aclosing(changes):
                async for change in changes:
                    for path, events in self._translate(change):
                        await self._tell(path, events)
        except CloisterError as error:
            self._failure = error
        finally:
            self._came.set()

    def _translate(self, change: Change) -> Iterator[tuple[str, tuple[str, ...]]]:
        expected = self._expected.get(change.path)
        if expected is not None and change.kind.value in ("moved-to", "created", "changed"):
            is_told, expected.is_told = expected.is_told, True
            if not is_told:
                yield change.path, expected.events
            # A file is renamed while it is open: that it was closed is told last.
            if expected.events == NEW_DIRECTORY or change.kind.value == "changed":
                expected.over.set()
            return
        kind = _KINDS.get(change.kind.value)
        if kind is not None and change.path != self._path:
            yield change.path, (kind,)

    async def _tell(self, path: str, kinds: tuple[str, ...]) -> None:
        entry = None
        if self._has_entries and _WITH_ENTRY.intersection(kinds):
            with contextlib.suppress(CloisterError):
                entry = await entry_info(self._sandbox, path, self._person)
        name = path.removeprefix(self._path.rstrip("/")).lstrip("/")
        for kind in kinds:
            event: Event = {"name": name, "type": kind}
            if entry is not None and kind in _WITH_ENTRY:
                event["entry"] = entry
            self._events.append(event)
        self._came.set()
