"""What a path is, in as few bytes as it takes to tell whether it is still that."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from cloister.errors import RequestError
from cloister.model.changes import EntryType
from cloister.store.changes.extents import digest
from cloister.store.changes.layers import Entry


@dataclass(frozen=True, slots=True)
class Mark:
    """Type, permission bits (0 for a link), and for a file the digest, for a link the target.

    Set-id and sticky bits are no part of it: they do not travel between a host and a sandbox.
    """

    type: EntryType
    mode: int
    digest: str = ""
    target: bytes = b""
    size: int = 0

    def to_json(self) -> dict[str, object]:
        """Return the mark as plain values."""
        found: dict[str, object] = {"type": str(self.type), "mode": f"{self.mode:03o}"}
        if self.type is EntryType.FILE:
            found |= {"digest": self.digest, "size": self.size}
        if self.type is EntryType.LINK:
            found["target"] = os.fsdecode(self.target)
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, object]) -> Mark:
        """Return the mark that `to_json` wrote."""
        try:
            return cls(
                type=EntryType(str(found["type"])),
                mode=int(str(found["mode"]), 8),
                digest=str(found.get("digest", "")),
                target=os.fsencode(str(found.get("target", ""))),
                size=int(str(found.get("size", 0))),
            )
        except (KeyError, ValueError) as error:
            raise RequestError(f"a mark in a baseline cannot be read: {error}") from error


def mark_of(entry: Entry) -> Mark:
    """Read what an entry is; a file is read to its end."""
    if entry.type is EntryType.LINK:
        return Mark(entry.type, 0, target=entry.read_link())
    mode = entry.mode & 0o777
    if entry.type is not EntryType.FILE:
        return Mark(entry.type, mode)
    handle = entry.open()
    try:
        size = os.fstat(handle).st_size
        return Mark(entry.type, mode, digest(handle, size), size=size)
    finally:
        os.close(handle)
