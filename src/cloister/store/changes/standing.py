"""What stands at a path inside, as far as it matters to whoever may put it on a host."""

from __future__ import annotations

from dataclasses import dataclass

from cloister.model.changes import EntryType
from cloister.store.changes.layers import Entry
from cloister.store.changes.mark import Mark, mark_of
from cloister.store.changes.xattrs import CAPABILITY, read_xattrs

SET_ID = 0o6000


@dataclass(frozen=True, slots=True)
class Standing:
    """A mark, and what is no part of one: set-id bits and capabilities do not travel."""

    mark: Mark
    set_id: int = 0
    has_capabilities: bool = False

    @property
    def mode(self) -> int:
        """The permission bits with set-id."""
        return self.mark.mode | self.set_id


def standing_of(entry: Entry) -> Standing:
    """Read what stands there; a file is read to its end."""
    mark = mark_of(entry)
    if entry.type is EntryType.LINK:
        return Standing(mark)
    is_file = entry.type is EntryType.FILE
    return Standing(mark, entry.mode & SET_ID, is_file and CAPABILITY in read_xattrs(entry))
