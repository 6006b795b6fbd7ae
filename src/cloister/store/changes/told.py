"""Changes that are applied on another machine than the sandbox's: said in lines, read in pieces."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

from cloister.errors import GuestError, RequestError
from cloister.model import quote
from cloister.model.changes import EntryType, escape
from cloister.store.changes.baseline import Baseline
from cloister.store.changes.deeds import require_inside
from cloister.store.changes.extents import PIECE_BYTES, extents, pieces
from cloister.store.changes.layers import Entry
from cloister.store.changes.mark import Mark
from cloister.store.changes.plan import Origin, State, Step
from cloister.store.changes.standing import SET_ID, Standing

# No line of a path that a kernel made is longer.
MAXIMUM_LINE_BYTES = 8 * 1024 * 1024
# More than any size, and than any time in nanoseconds, that a kernel takes.
_MOST = 2**63
_MOST_SAID = 1000


def state_lines(origin: Origin, baseline: Baseline | None) -> Iterator[bytes]:
    """Yield what differs, a line for each path."""
    for path, before, now in origin.states(baseline):
        after = None if now is None else now.mark
        if after != before or (now is not None and now.set_id):
            yield _line(path, before, after, now)


def step_lines(steps: Iterable[Step]) -> Iterator[bytes]:
    """Yield the steps of a plan, a line for each."""
    for step in steps:
        yield _line(step.path, step.before, step.after, None)


def _line(path: bytes, before: Mark | None, after: Mark | None, now: Standing | None) -> bytes:
    # Bytes that are no text become surrogates, which JSON can write and Python reads back.
    said: dict[str, Any] = {"path": os.fsdecode(path)}
    if before is not None:
        said["before"] = before.to_json()
    if after is not None:
        said["after"] = after.to_json()
    if now is not None and now.set_id:
        said["set_id"] = f"{now.set_id:o}"
    if now is not None and now.has_capabilities:
        said["capabilities"] = True
    return json.dumps(said).encode() + b"\n"


def read_states(lines: Iterable[bytes]) -> Iterator[State]:
    """Yield what `state_lines` wrote; whoever wrote it may have been anybody."""
    for line in lines:
        path, before, after, said = _parse(line)
        if after is None:
            yield path, before, None
            continue
        set_id = int(str(said.get("set_id", "0")), 8) & SET_ID
        yield path, before, Standing(after, set_id, said.get("capabilities") is True)


def read_steps(lines: Iterable[bytes]) -> Iterator[Step]:
    """Yield what `step_lines` wrote; whoever wrote it may have been anybody."""
    for line in lines:
        path, before, after, _ = _parse(line)
        yield Step(path, before, after)


def _parse(line: bytes) -> tuple[bytes, Mark | None, Mark | None, Mapping[str, Any]]:
    try:
        said = json.loads(line)
        path = os.fsencode(said["path"])
        require_inside(path)
        marks = [None if (mark := said.get(name)) is None else _mark(mark) for name in _TWO]
        int(str(said.get("set_id", "0")), 8)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RequestError("a line of changes cannot be read; both sides need one release") from (
            error
        )
    return path, marks[0], marks[1], said


_TWO = ("before", "after")


def _mark(found: Mapping[str, object]) -> Mark:
    mark = Mark.from_json(found)
    if mark.size < 0 or b"\0" in mark.target or not 0 <= mark.mode <= 0o777:
        raise ValueError("a mark that no path has")
    return mark


def write_contents(file: IO[bytes], origin: Origin, wanted: Mapping[bytes, Mark]) -> None:
    """Write what is put in place, each piece after a line that says where it belongs.

    What has become of a path meanwhile is said in such a line too, for the answer has begun.
    """
    try:
        _write_all(file, origin, wanted)
    except GuestError as error:
        _write_piece(file, {"error": str(error)[:_MOST_SAID]}, b"")


def _write_all(file: IO[bytes], origin: Origin, wanted: Mapping[bytes, Mark]) -> None:
    missing = set(wanted)
    for path, now in origin.contents():
        if path not in wanted or not isinstance(now, Entry):
            continue
        if now.type is not wanted[path].type:
            raise _changed_since(path)
        missing.discard(path)
        named = {"path": os.fsdecode(path), "mtime_ns": max(0, now.mtime_ns)}
        if now.type is EntryType.LINK:
            _write_piece(file, {**named, "target": os.fsdecode(now.read_link())}, b"")
        else:
            _write_piece(file, named, b"")
            _write_file(file, now, wanted[path].size)
    if missing:
        raise _changed_since(min(missing))


def _write_file(file: IO[bytes], now: Entry, size: int) -> None:
    handle = now.open()
    try:
        for start, end in extents(handle, size):
            at = start
            for piece in pieces(handle, start, end):
                _write_piece(file, {"at": at}, piece)
                at += len(piece)
    finally:
        os.close(handle)


def _write_piece(file: IO[bytes], said: Mapping[str, Any], piece: bytes) -> None:
    file.write(json.dumps({**said, "bytes": len(piece)}).encode() + b"\n")
    file.write(piece)


def parse_piece(line: bytes) -> dict[str, Any]:
    """Return the line before a piece, with a size that may be read."""
    try:
        said: dict[str, Any] = json.loads(line)
        sizes = [said["bytes"], said.get("at", 0), said.get("mtime_ns", 0)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RequestError("what the server sent of the changes cannot be read") from error
    is_sane = all(isinstance(each, int) and 0 <= each < _MOST for each in sizes)
    if not is_sane or sizes[0] > PIECE_BYTES:
        raise RequestError("what the server sent of the changes cannot be read")
    if "error" in said:
        raise GuestError(quote(said["error"]))
    return said


def _changed_since(path: bytes) -> GuestError:
    return GuestError(f"{escape(path)} was changed inside since it was shown; plan again")
