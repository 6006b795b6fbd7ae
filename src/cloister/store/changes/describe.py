"""Turns two sights of one path into the change between them, or into none."""

from __future__ import annotations

from cloister.model.changes import Aspect, Change, ChangeKind, EntryType
from cloister.store.changes.compare import differences, differences_from_given
from cloister.store.changes.layers import Entry
from cloister.store.changes.stratum import Owners, Skeleton

# Files with several names that are remembered by their first; more than these leave as copies.
_HELD_LINKS = 100_000


class Description:
    """What is said about the paths of one overlay, in the order in which they are walked."""

    def __init__(self, skeleton: Skeleton, owners: Owners) -> None:
        self._skeleton = skeleton
        self._owners = owners
        self._links: dict[tuple[int, int], bytes] = {}

    def compare(self, path: bytes, now: Entry, past: Entry | None) -> Change | None:
        """Return the change of what stands there; None if it is what was there, or is given."""
        given = self._skeleton.at(path)
        if past is None and given is None:
            return self._describe(path, ChangeKind.ADDED, now)
        aspects: frozenset[Aspect] = frozenset()
        old_mode, old_type = None, None
        if given is not None:
            aspects = differences_from_given(now, given, self._owners)
            old_mode, old_type = given.mode, given.type
            if not aspects:
                return None
        if past is not None:
            aspects = differences(now, past, self._owners)
            old_mode, old_type = past.mode, past.type
        if not aspects:
            return None
        return self._describe(path, ChangeKind.CHANGED, now, aspects, old_mode, old_type)

    def deleted(self, path: bytes, past: Entry | None) -> Change | None:
        """Return the change of what stands there no more; None if nothing ever did."""
        before = past if past is not None else self._skeleton.at(path)
        if before is None:
            return None
        return Change(path, ChangeKind.DELETED, before.type, old_mode=before.mode)

    def _describe(
        self,
        path: bytes,
        kind: ChangeKind,
        now: Entry,
        aspects: frozenset[Aspect] = frozenset(),
        old_mode: int | None = None,
        old_type: EntryType | None = None,
    ) -> Change:
        uid, gid = self._owners.inside(now.status.st_uid, now.status.st_gid)
        return Change(
            path=path or b"/",
            kind=kind,
            type=now.type,
            aspects=aspects,
            size=now.status.st_size if now.type is EntryType.FILE else 0,
            mode=now.mode,
            old_mode=old_mode,
            old_type=old_type,
            uid=uid,
            gid=gid,
            target=now.read_link() if now.type is EntryType.LINK else None,
            hard_link=self._first_name(path, now),
        )

    def _first_name(self, path: bytes, now: Entry) -> bytes | None:
        if now.status.st_nlink < 2 or now.type is EntryType.DIRECTORY:
            return None
        key = (now.status.st_dev, now.status.st_ino)
        if (first := self._links.get(key)) is None and len(self._links) < _HELD_LINKS:
            self._links[key] = path
        return first
