"""In what two things that stand at the same path differ."""

from __future__ import annotations

import os

from cloister.model.changes import Aspect, EntryType
from cloister.store.changes.extents import same_content
from cloister.store.changes.layers import Entry
from cloister.store.changes.stratum import Given, Owners
from cloister.store.changes.xattrs import read_xattrs

_DEVICES = (EntryType.CHARACTER_DEVICE, EntryType.BLOCK_DEVICE)


def differences(now: Entry, past: Entry, owners: Owners) -> frozenset[Aspect]:
    """Return all in which an entry differs from what was there before."""
    found = set()
    before, after = past.status, now.status
    if now.type is not past.type:
        found.add(Aspect.TYPE)
    if now.type is not EntryType.LINK and now.mode != past.mode:
        found.add(Aspect.MODE)
    if owners.inside(after.st_uid, after.st_gid) != owners.inside(before.st_uid, before.st_gid):
        found.add(Aspect.OWNER)
    if now.type is past.type:
        if now.type is EntryType.LINK and now.read_link() != past.read_link():
            found.add(Aspect.LINK)
        if now.type is EntryType.FILE and not _same_file(now, past):
            found.add(Aspect.CONTENT)
        if now.type in _DEVICES and after.st_rdev != before.st_rdev:
            found.add(Aspect.CONTENT)
        if read_xattrs(now) != read_xattrs(past):
            found.add(Aspect.XATTRS)
    return frozenset(found)


def _same_file(now: Entry, past: Entry) -> bool:
    size = now.status.st_size
    if size != past.status.st_size:
        return False
    if size == 0 or os.path.samestat(now.status, past.status):
        return True
    first = now.open()
    try:
        second = past.open()
        try:
            return same_content(first, second, size)
        finally:
            os.close(second)
    finally:
        os.close(first)


def differences_from_given(now: Entry, given: Given, owners: Owners) -> frozenset[Aspect]:
    """Return all in which an entry differs from what every sandbox is given there."""
    found = set()
    if now.type is not given.type:
        found.add(Aspect.TYPE)
    elif now.type is EntryType.LINK and now.read_link() != given.target:
        found.add(Aspect.LINK)
    elif now.type is EntryType.FILE and not _holds(now, given.content):
        found.add(Aspect.CONTENT)
    if now.type is not EntryType.LINK and now.mode != given.mode:
        found.add(Aspect.MODE)
    uid, gid = owners.inside(now.status.st_uid, now.status.st_gid)
    if given.uid not in (None, uid) or given.gid not in (None, gid):
        found.add(Aspect.OWNER)
    if now.type is given.type and read_xattrs(now):
        found.add(Aspect.XATTRS)
    return frozenset(found)


def _holds(now: Entry, content: bytes) -> bool:
    if now.status.st_size != len(content):
        return False
    handle = now.open()
    try:
        return os.pread(handle, len(content) + 1, 0) == content
    finally:
        os.close(handle)
