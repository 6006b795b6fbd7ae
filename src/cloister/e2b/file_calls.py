"""The calls of `filesystem.Filesystem`."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response

from cloister.e2b import fields
from cloister.e2b.as_root import is_refused, make_directories
from cloister.e2b.box import Box
from cloister.e2b.connect import Message, StreamAnswer, keepalive_s, read_one, refused_stream
from cloister.e2b.entry_info import describe, entry_info
from cloister.e2b.metadata import metadata_below
from cloister.e2b.people import Person, find_person, named_in
from cloister.e2b.refusal import CallRefused
from cloister.e2b.watches import NEW_DIRECTORY, Watch
from cloister.errors import CloisterError, FileError, NotFound

_MAXIMUM_ENTRIES = 100_000


async def stat(box: Box, message: Message, person: Person) -> Message:
    """Return what is at a path."""
    return {"entry": await _entry(box, person.place(fields.text(message, "path")), person)}


async def make_dir(box: Box, message: Message, person: Person) -> Message:
    """Make a directory and those above it."""
    path = person.place(fields.text(message, "path"))
    files = box.sandbox.files
    try:
        found = await files.stat(path, user=person.user)
    except NotFound:
        async with box.watches.expecting(path, NEW_DIRECTORY):
            try:
                await files.make(path, user=person.user)
            except FileError as error:
                if not is_refused(error, person):
                    raise
                if not await make_directories(box.sandbox, path, person):
                    raise
        return {"entry": await _entry(box, path, person)}
    if found.kind.value == "directory":
        raise CallRefused("already_exists", f"directory already exists: {path}")
    raise CallRefused("invalid_argument", f"path already exists but it is not a directory: {path}")


async def move(box: Box, message: Message, person: Person) -> Message:
    """Rename, with the directories above the new name made."""
    source = person.place(fields.text(message, "source"))
    destination = person.place(fields.text(message, "destination"))
    files = box.sandbox.files
    await files.stat(source, follow=False, user=person.user)
    await files.make(posixpath.dirname(destination), user=person.user)
    await files.move(source, destination, replace=True, user=person.user)
    return {"entry": await _entry(box, destination, person)}


async def list_dir(box: Box, message: Message, person: Person) -> Message:
    """Return what is in a directory, to a depth, in the order of a walk."""
    path = person.place(fields.text(message, "path"))
    depth = fields.integer(message, "depth") or 1
    if depth < 0:
        raise CallRefused("invalid_argument", "depth is negative; it is at least 1")
    found = await box.sandbox.files.stat(path, user=person.user)
    if found.kind.value != "directory":
        raise CallRefused("invalid_argument", f"path is not a directory: {path}")
    entries: list[Message] = []
    await _walk(box, path, person, depth, entries)
    if box.may_have_metadata and entries:
        given = await metadata_below(box.sandbox, [each["path"] for each in entries], person)
        for each in entries:
            if each["path"] in given:
                each["metadata"] = given[each["path"]]
    return {"entries": entries}


async def _walk(box: Box, path: str, person: Person, depth: int, entries: list[Message]) -> None:
    # A stack of what is still to be shown, not recursion: the depth is the caller's to choose.
    pending = [(path, depth)]
    waiting: list[tuple[str, int, Message]] = []
    while pending or waiting:
        if pending:
            below, left = pending.pop()
            listed = await box.sandbox.files.list(below, limit=_MAXIMUM_ENTRIES, user=person.user)
            for found in reversed(listed):
                place = posixpath.join(below, found.name)
                shown = await describe(box.sandbox, place, found, person)
                deeper = left - 1 if found.kind.value == "directory" else 0
                waiting.append((place, deeper, shown))
        if waiting:
            place, deeper, info = waiting.pop()
            entries.append(info)
            if len(entries) > _MAXIMUM_ENTRIES:
                raise CallRefused(
                    "resource_exhausted",
                    f"more than {_MAXIMUM_ENTRIES} entries; list less deeply",
                )
            if deeper > 0:
                pending.append((place, deeper))


async def remove(box: Box, message: Message, person: Person) -> Message:
    """Remove a file or a whole tree; nothing there is no error."""
    path = person.place(fields.text(message, "path"))
    try:
        await box.sandbox.files.remove(path, recursive=True, user=person.user)
    except NotFound:
        return {}
    return {}


async def watch_dir(box: Box, request: Request) -> Response:
    """Tell what changes in a directory for as long as the client listens."""
    try:
        message = await read_one(request)
        person = await find_person(box.sandbox, named_in(request.headers.get("authorization")))
        watch = await _open(box, message, person)
    except CloisterError as error:
        return refused_stream(error)
    return StreamAnswer(_events(box, watch, keepalive_s(request)))


async def _open(box: Box, message: Message, person: Person) -> Watch:
    return await box.watches.open(
        person.place(fields.text(message, "path")),
        person,
        recursive=fields.flag(message, "recursive"),
        entries=fields.flag(message, "includeEntry"),
    )


async def _events(box: Box, watch: Watch, silence_s: float) -> AsyncGenerator[Message, None]:
    try:
        yield {"start": {}}
        while True:
            try:
                async with asyncio.timeout(silence_s):
                    events = await watch.next()
            except TimeoutError:
                yield {"keepalive": {}}
                continue
            if not events:
                return
            for event in events:
                yield {"filesystem": event}
    finally:
        await box.watches.remove(watch.id)


async def create_watcher(box: Box, message: Message, person: Person) -> Message:
    """Begin a watch whose events are asked for."""
    return {"watcherId": (await _open(box, message, person)).id}


async def get_watcher_events(box: Box, message: Message, _person: Person) -> Message:
    """Return what happened since the last time."""
    return {"events": box.watches.find(fields.text(message, "watcherId")).take()}


async def remove_watcher(box: Box, message: Message, _person: Person) -> Message:
    """End a watch."""
    await box.watches.remove(fields.text(message, "watcherId"))
    return {}


async def _entry(box: Box, path: str, person: Person) -> Message:
    if not box.may_have_metadata:
        return await entry_info(box.sandbox, path, person)
    # Side by side: a program inside takes ten times as long as the rest.
    info, metadata = await asyncio.gather(
        entry_info(box.sandbox, path, person),
        _metadata(box, path, person),
    )
    return {**info, "metadata": metadata} if metadata else info


async def _metadata(box: Box, path: str, person: Person) -> dict[str, str]:
    return (await metadata_below(box.sandbox, [path], person)).get(path, {})
