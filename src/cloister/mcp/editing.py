"""Replaces text in a file, and says exactly why where it cannot."""

from __future__ import annotations

import itertools

from cloister.mcp.failure import ToolFailure
from cloister.model import quote
from cloister.sandbox import Sandbox

MAXIMUM_BYTES = 8 * 2**20
_SHOWN_LINES = 10


async def edit(
    sandbox: Sandbox, path: str, old: str, new: str, *, replace_all: bool
) -> tuple[int, int, str]:
    """Replace text in a file; return how often, the first line, and the lines around it."""
    found = await sandbox.files.stat(path)
    if found.size > MAXIMUM_BYTES:
        raise ToolFailure(
            f"{quote(path)} has {found.size} bytes; edit takes {MAXIMUM_BYTES}, so use run (sed)"
        )
    data = await sandbox.files.read(path, limit=MAXIMUM_BYTES)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ToolFailure(
            f"{quote(path)} is not UTF-8 at byte {error.start}; change it with run"
        ) from error
    if old == new:
        raise ToolFailure("old and new are the same; nothing would change")
    count = text.count(old)
    if count == 0:
        raise ToolFailure(f"old is not in {quote(path)}: {_why_not(text, old)}")
    if count > 1 and not replace_all:
        raise ToolFailure(
            f"old is {count} times in {quote(path)}, at lines {_lines_of(text, old)}; "
            "take more lines around it so that it is there once, or set replace_all"
        )
    at = text.index(old)
    changed = text.replace(old, new)
    # The same mode: a script stays a script.
    await sandbox.files.write(path, changed.encode("utf-8"), mode=found.mode & 0o777)
    line = text.count("\n", 0, at) + 1
    return (count if replace_all else 1), line, _around(changed, line, new.count("\n"))


def _why_not(text: str, old: str) -> str:
    """Return what is nearly so, in words that lead to the right text."""
    if "\r\n" in text and "\r\n" not in old and "\n" in old:
        return "its lines end in CR LF and those of old in LF; write \\r\\n"
    first = next((line.strip() for line in old.splitlines() if line.strip()), "")
    near = [
        str(number)
        for number, line in enumerate(text.splitlines(), 1)
        if first and line.strip() == first
    ]
    if near:
        places = ", ".join(near[:_SHOWN_LINES])
        return (
            f"its first line is at line {places}, so whitespace or a following line differs; "
            "read there and copy the text exactly"
        )
    return "read the file again and copy the text exactly"


def _lines_of(text: str, old: str) -> str:
    def places() -> list[int]:
        found: list[int] = []
        at = text.find(old)
        while at != -1 and len(found) <= _SHOWN_LINES:
            found.append(text.count("\n", 0, at) + 1)
            at = text.find(old, at + len(old))
        return found

    numbers = places()
    more = ", ..." if len(numbers) > _SHOWN_LINES else ""
    return ", ".join(map(str, numbers[:_SHOWN_LINES])) + more


def _around(text: str, line: int, height: int) -> str:
    """Return the changed lines with three on each side, numbered."""
    first = max(1, line - 3)
    last = line + min(height, 40) + 3
    lines = itertools.islice(text.splitlines(), first - 1, last)
    return "\n".join(f"{number:>6}\t{line[:500]}" for number, line in enumerate(lines, first))
