"""Whether a path leads where only root decides: through no place that others can change."""

from __future__ import annotations

import posixpath

from cloister.errors import CloisterError, NotFound
from cloister.sandbox import Entry, Sandbox

_MOST_LINKS = 16
_MOST_PARTS = 256
# The host's own files show as nobody's where they could not be given other owners.
_ROOTS = (0, 65534)
_OTHERS_WRITE, _GROUP_WRITES = 0o002, 0o020


async def is_roots_way(sandbox: Sandbox, path: str) -> bool:
    """Walk a path as root, and say whether every directory on the way is root's to change.

    Then it leads to the same place a moment later: what others may have put there, a link above
    all, is not followed for them. The last part may be anything, and may be missing.
    """
    place, parts, links = "/", path.split("/"), 0
    try:
        if not _is_roots(await sandbox.files.stat("/", follow=False, user="root")):
            return False
        for _ in range(_MOST_PARTS):
            while parts and parts[0] in ("", "."):
                parts = parts[1:]
            if not parts:
                return True
            if parts[0] == "..":
                place, parts = posixpath.dirname(place), parts[1:]
                continue
            there = posixpath.join(place, parts[0])
            found = await sandbox.files.stat(there, follow=False, user="root")
            if found.target is not None:
                links += 1
                place = "/" if found.target.startswith("/") else place
                parts = [*found.target.split("/"), *parts[1:]]
                if links > _MOST_LINKS:
                    return False
                continue
            if len(parts) > 1 and not _is_roots(found):
                return False
            place, parts = there, parts[1:]
    except NotFound:
        return True
    except CloisterError:
        return False
    return False


def _is_roots(entry: Entry) -> bool:
    if entry.uid not in _ROOTS or entry.mode & _OTHERS_WRITE:
        return False
    return not entry.mode & _GROUP_WRITES or entry.gid in _ROOTS
