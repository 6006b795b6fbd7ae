"""The subordinate ids that /etc/subuid and /etc/subgid give a person."""

from __future__ import annotations

import os
import pwd
import shutil
from dataclasses import dataclass
from pathlib import Path

# Rootless, one person's ids are shared by their sandboxes, in slices of this many.
SLICE = 256


@dataclass(frozen=True, slots=True)
class SubIds:
    """The ranges /etc/subuid and /etc/subgid give this person, and the helpers that map them."""

    uids: tuple[tuple[int, int], ...]
    gids: tuple[tuple[int, int], ...]
    uid_helper: str
    gid_helper: str

    @property
    def count(self) -> int:
        """How many ids of both kinds there are."""
        return min(sum(n for _, n in self.uids), sum(n for _, n in self.gids))


def find_sub_ids() -> SubIds | None:
    """Return this person's ranges, or None without ranges or without the set-id helpers."""
    uid_helper, gid_helper = shutil.which("newuidmap"), shutil.which("newgidmap")
    if uid_helper is None or gid_helper is None:
        return None
    uids = _read_ranges(Path("/etc/subuid"))
    gids = _read_ranges(Path("/etc/subgid"))
    found = SubIds(uids, gids, uid_helper, gid_helper)
    return found if found.count >= 2 * SLICE else None


def _read_ranges(path: Path) -> tuple[tuple[int, int], ...]:
    uid = os.getuid()
    try:
        names = {str(uid), pwd.getpwuid(uid).pw_name}
    except KeyError:
        names = {str(uid)}
    if not path.exists():
        return ()
    found = []
    for line in path.read_text(errors="replace").splitlines():
        name, _, rest = line.partition(":")
        first, _, count = rest.partition(":")
        if name in names and first.isdecimal() and count.isdecimal() and int(count) > 0:
            found.append((int(first), int(count)))
    return tuple(found)
