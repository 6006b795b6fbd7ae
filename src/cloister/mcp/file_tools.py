"""What the tools about files do: read, write, edit, search and list."""

from __future__ import annotations

import base64

import mcp_types as wire

from cloister.errors import NotFound
from cloister.mcp import arguments as ask
from cloister.mcp import editing, reading, searching
from cloister.mcp import results as told
from cloister.mcp.commands import Caller
from cloister.mcp.desk import Desk
from cloister.mcp.failure import ToolFailure
from cloister.mcp.resources import link_to
from cloister.mcp.tool import Told
from cloister.sandbox.entries import Entry, Kind

_MAXIMUM_WRITTEN_BYTES = 16 * 2**20


async def read(desk: Desk, given: ask.ReadArguments, caller: Caller) -> Told:
    """Return lines of a file, or an image."""
    sandbox, path = await desk.sandbox(), await desk.resolve(given.path)
    beginning, size = await reading.look(sandbox, path)
    kind = reading.image_type(beginning)
    if kind is not None:
        if size > reading.MAXIMUM_IMAGE_BYTES:
            raise ToolFailure(
                f"the image has {size} bytes; the most is {reading.MAXIMUM_IMAGE_BYTES}, "
                "so make it smaller with run"
            )
        data = await sandbox.files.read(path, limit=reading.MAXIMUM_IMAGE_BYTES)
        image = wire.ImageContent(data=base64.b64encode(data).decode(), mime_type=kind)
        nothing = told.ReadAnswer(path=path, text=None, first_line=None, next_line=None)
        return Told(nothing, f"{kind} of {size} bytes", [image])
    if b"\0" in beginning:
        raise ToolFailure(
            f"{given.path} is binary, {size} bytes; look at it with run (file, xxd, strings), "
            f"or fetch it as the resource {link_to(path)}"
        )
    found = await reading.read_lines(sandbox, path, given.first_line, given.lines)
    answer = told.ReadAnswer(
        path=path, text=found.text, first_line=given.first_line, next_line=found.next_line
    )
    text = found.text or "[the file is empty]"
    if found.next_line is not None:
        text = f"{text.rstrip()}\n[there is more: read with first_line={found.next_line}]"
    return Told(answer, text)


async def write(desk: Desk, given: ask.WriteArguments, caller: Caller) -> Told:
    """Write a whole file."""
    sandbox, path = await desk.sandbox(), await desk.resolve(given.path)
    try:
        data = given.content.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolFailure(f"content has a lone surrogate at character {error.start}") from error
    if len(data) > _MAXIMUM_WRITTEN_BYTES:
        raise ToolFailure(
            f"content has {len(data)} bytes; the most is {_MAXIMUM_WRITTEN_BYTES}, "
            "so write it in parts with run"
        )
    before = await _present(desk, path)
    mode = 0o644 if before is None else before.mode & 0o777
    await sandbox.files.write(path, data, mode=mode)
    answer = told.WriteAnswer(path=path, bytes=len(data), created=before is None)
    did = "created" if answer.created else "replaced"
    return Told(answer, f"{did} {path}, {len(data)} bytes")


async def _present(desk: Desk, path: str) -> Entry | None:
    sandbox = await desk.sandbox()
    if not await sandbox.files.exists(path):
        return None
    try:
        found = await sandbox.files.stat(path)
    except NotFound:
        # A link to nowhere: what it leads to will be made.
        return None
    if found.kind is Kind.DIRECTORY:
        raise ToolFailure(f"{path} is a directory; name a file in it")
    return found


async def edit(desk: Desk, given: ask.EditArguments, caller: Caller) -> Told:
    """Replace exact text in a file."""
    sandbox, path = await desk.sandbox(), await desk.resolve(given.path)
    await reading.look(sandbox, path)
    replaced, line, around = await editing.edit(
        sandbox, path, given.old, given.new, replace_all=given.replace_all
    )
    answer = told.EditAnswer(path=path, replaced=replaced, line=line)
    return Told(answer, f"replaced {replaced} at line {line} of {path}; it now reads:\n{around}")


async def search(desk: Desk, given: ask.SearchArguments, caller: Caller) -> Told:
    """Find lines by a pattern, or files by a glob."""
    sandbox, path = await desk.sandbox(), await desk.resolve(given.path)
    await sandbox.files.stat(path)
    if given.pattern is not None:
        found, more = await searching.search_lines(
            sandbox, path, given.pattern, given.glob, given.limit
        )
    elif given.glob is not None:
        found, more = await searching.search_files(sandbox, path, given.glob, given.limit)
    else:
        raise ToolFailure("neither pattern nor glob is given; name one, or use list")
    matches = [told.Match(path=each.path, line=each.line, text=each.text) for each in found]
    lines = [
        each.path if each.line is None else f"{each.path}:{each.line}:{each.text}"
        for each in matches
    ]
    if more:
        lines.append("[there is more; narrow the search, or raise limit]")
    answer = told.SearchAnswer(matches=matches, truncated=more)
    return Told(answer, "\n".join(lines) or "nothing found")


async def list_(desk: Desk, given: ask.ListArguments, caller: Caller) -> Told:
    """Return what is in a directory."""
    sandbox, path = await desk.sandbox(), await desk.resolve(given.path)
    entries = await sandbox.files.list(path, limit=given.limit + 1)
    shown = entries[: given.limit]
    items = [
        told.Item(
            name=printable(each.name),
            kind=each.kind.value,
            size=each.size,
            mode=f"{each.mode:04o}",
            target=None if each.target is None else printable(each.target),
        )
        for each in shown
    ]
    lines = [_line(item) for item in items]
    truncated = len(entries) > given.limit
    if truncated:
        lines.append("[there is more; raise limit, or use search with a glob]")
    answer = told.ListAnswer(path=path, entries=items, truncated=truncated)
    return Told(answer, "\n".join(lines) or "[the directory is empty]")


def _line(item: told.Item) -> str:
    end = {"directory": "/", "link": f" -> {item.target}"}.get(item.kind, "")
    size = f"{item.size:>10}" if item.kind == "file" else " " * 10
    return f"{item.mode} {size} {item.name}{end}"


def printable(name: str) -> str:
    """Return a name that JSON can carry; bytes that are no text are shown as such."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
