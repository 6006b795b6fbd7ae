"""A file as `filesystem.EntryInfo` shows it."""

from __future__ import annotations

import posixpath
import stat
from datetime import UTC, datetime
from typing import Any

from cloister.e2b.people import Person, names_of
from cloister.errors import CloisterError, NotFound
from cloister.sandbox import Entry, Sandbox

_TYPES = {"file": "FILE_TYPE_FILE", "directory": "FILE_TYPE_DIRECTORY"}
_PATH_BYTES = 8192


async def entry_info(sandbox: Sandbox, path: str, person: Person) -> dict[str, Any]:
    """Return what is at a path; of a link, what it leads to and where that is."""
    found = await sandbox.files.stat(path, follow=False, user=person.user)
    return await describe(sandbox, path, found, person)


async def describe(sandbox: Sandbox, path: str, found: Entry, person: Person) -> dict[str, Any]:
    """Return the entry of what was found at a path."""
    shown, target = found, None
    if found.target is not None:
        try:
            shown = await sandbox.files.stat(path, user=person.user)
            target = await _resolved(sandbox, path, person)
        except CloisterError:
            # It leads nowhere: a link is all there is.
            target = found.target
    owner, group = await names_of(sandbox, found.uid, found.gid)
    info: dict[str, Any] = {
        "name": posixpath.basename(path) or "/",
        "type": _TYPES.get(shown.kind.value, "FILE_TYPE_UNSPECIFIED"),
        "path": path,
        "size": str(shown.size),
        "mode": shown.mode & 0o777,
        "permissions": _permissions(found),
        "owner": owner,
        "group": group,
        "modifiedTime": _time(found.mtime_ns),
    }
    if found.target is not None:
        if shown is found:
            info["type"] = "FILE_TYPE_SYMLINK"
        info["symlinkTarget"] = target
    return info


async def _resolved(sandbox: Sandbox, path: str, person: Person) -> str:
    process = await sandbox.start(["readlink", "-f", "--", path], cwd="/", user=person.user)
    result = await process.capture(_PATH_BYTES)
    if not result.ok:
        raise NotFound(f"the link at {path} leads nowhere", what=path)
    return result.stdout.removesuffix("\n")


def _permissions(entry: Entry) -> str:
    """Return the mode as Go's `fs.FileMode` writes it."""
    kind = {"directory": "d", "link": "L"}.get(entry.kind.value, "")
    special = "".join(
        letter
        for bit, letter in ((stat.S_ISUID, "u"), (stat.S_ISGID, "g"), (stat.S_ISVTX, "t"))
        if entry.mode & bit
    )
    letters = "rwxrwxrwx"
    bits = "".join(letters[i] if entry.mode & (0o400 >> i) else "-" for i in range(9))
    return (kind + special or "-") + bits


def _time(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    # Whoever owns the file sets its time, also to one that no calendar has.
    bounded = min(max(seconds, 0), 253_402_300_799)
    moment = datetime.fromtimestamp(bounded, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{rest:09d}Z"
