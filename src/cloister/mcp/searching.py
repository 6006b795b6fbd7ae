"""Finds lines and files, by programs inside: what a pattern costs, it costs the sandbox."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from cloister.errors import NotFound
from cloister.mcp.failure import ToolFailure
from cloister.mcp.globs import expand, matcher
from cloister.model import Reason, Result, quote
from cloister.sandbox import Sandbox

_TIMEOUT_S = 60.0
_OUTPUT_BYTES = 4 * 2**20
_LINE_CHARACTERS = 500
_SKIPPED = (".git", "node_modules", "__pycache__", ".venv")


@dataclass(frozen=True, slots=True)
class Found:
    """A line that matched, or a file."""

    path: str
    line: int | None = None
    text: str | None = None


async def search_lines(
    sandbox: Sandbox, where: str, pattern: str, glob: str | None, limit: int
) -> tuple[list[Found], bool]:
    """Return matching lines, and whether there are more."""
    result = await _grep(sandbox, where, pattern, glob)
    wanted = matcher(glob)
    found: list[Found] = []
    for record in result.stdout.split("\n"):
        path, zero, rest = record.partition("\0")
        number, colon, text = rest.partition(":")
        if not zero or not colon or not number.isdecimal() or not wanted(_below(where, path)):
            continue
        if len(found) == limit:
            return found, True
        found.append(Found(path, int(number), text[:_LINE_CHARACTERS]))
    return found, result.stdout_truncated


async def _grep(sandbox: Sandbox, where: str, pattern: str, glob: str | None) -> Result:
    options = ["-rnIZH", *(f"--exclude-dir={name}" for name in _SKIPPED)]
    if glob is not None:
        # By name here, by whole path where the lines are read.
        options += [f"--include={posixpath.basename(each) or '*'}" for each in expand(glob)]
    for dialect in ("-P", "-E"):
        result = await _run(sandbox, ["grep", dialect, *options, "-e", pattern, "--", where])
        # 1 is "nothing found"; 2 with lines is "something could not be read".
        if result.exit_code in (0, 1) or result.stdout_bytes:
            return result
        if not _lacks_dialect(result):
            break
    said = result.stderr.strip().partition("\n")[0][:300]
    raise ToolFailure(f"the search failed: {said}; check pattern and path")


def _lacks_dialect(result: Result) -> bool:
    # Small greps know neither -P nor these words for it.
    return any(words in result.stderr for words in ("-P", "invalid option", "unrecognized option"))


async def search_files(
    sandbox: Sandbox, where: str, glob: str, limit: int
) -> tuple[list[Found], bool]:
    """Return files whose path matches, by name, and whether there are more."""
    prune: list[str] = []
    for name in _SKIPPED:
        prune += ["-o", "-name", name] if prune else ["-name", name]
    command = ["find", where, "(", *prune, ")", "-prune", "-o", "-type", "f", "-print0"]
    result = await _run(sandbox, command)
    if not result.stdout_bytes and result.exit_code:
        said = result.stderr.strip().partition("\n")[0][:300]
        raise ToolFailure(f"the search failed: {said}; check the path")
    paths = result.stdout.split("\0")[:-1]
    wanted = matcher(glob)
    found = sorted(path for path in paths if wanted(_below(where, path)))
    return [Found(path) for path in found[:limit]], len(found) > limit or result.stdout_truncated


async def _run(sandbox: Sandbox, command: list[str]) -> Result:
    try:
        result = await sandbox.run(
            command, timeout=_TIMEOUT_S, output=_OUTPUT_BYTES, env={"LC_ALL": "C.UTF-8"}
        )
    except NotFound as error:
        raise ToolFailure(
            f"there is no {quote(command[0])} in the sandbox, which search needs; "
            "install it, or look with run"
        ) from error
    if result.reason is Reason.TIMEOUT:
        raise ToolFailure(
            f"the search took longer than {_TIMEOUT_S:g} s; name a smaller path or a glob"
        )
    return result


def _below(where: str, path: str) -> str:
    return path.removeprefix(where.rstrip("/")).lstrip("/") or posixpath.basename(path)
