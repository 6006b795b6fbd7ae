"""Extended attributes as they are inside: without overlayfs's own, and with one spelling each."""

from __future__ import annotations

import errno
import os
import struct

from cloister.model.changes import EntryType
from cloister.store.changes.descent import proc_path
from cloister.store.changes.layers import Entry

_MARKS = "user.overlay."
# What a program inside writes under that name, overlayfs keeps under this one.
_ESCAPED = "user.overlay.overlay."
CAPABILITY = "security.capability"
_OTHERS = frozenset({CAPABILITY, "system.posix_acl_access", "system.posix_acl_default"})

# struct vfs_ns_cap_data of linux/capability.h: revision 3 has the id of its root at the end.
_REVISION_2, _REVISION_3 = 0x02000000, 0x03000000
_REVISION_MASK = 0xFF000000


def read_xattrs(entry: Entry) -> dict[str, bytes]:
    """Return the attributes that can be seen inside; `trusted` and labels of the host cannot."""
    if entry.type is EntryType.LINK:
        return {}
    path = proc_path(entry.directory, entry.name)
    found = {}
    for name in _list(path):
        shown = _seen_inside(name)
        if shown is None:
            continue
        try:
            value = os.getxattr(path, name, follow_symlinks=False)
        except OSError as error:
            if error.errno == errno.ENODATA:
                continue
            raise
        found[shown] = _spell_capability(value) if name == CAPABILITY else value
    return found


def _list(path: bytes) -> list[str]:
    try:
        return os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOENT):
            return []
        raise


def _seen_inside(name: str) -> str | None:
    if name.startswith(_MARKS):
        return _MARKS + name.removeprefix(_ESCAPED) if name.startswith(_ESCAPED) else None
    return name if name.startswith("user.") or name in _OTHERS else None


def _spell_capability(value: bytes) -> bytes:
    # Of the sandbox's own root both revisions say the same, and a copy may change one to the other.
    if len(value) == 24:
        revision, *sets, root = struct.unpack("<6I", value)
        if revision & _REVISION_MASK == _REVISION_3 and root == 0:
            return struct.pack("<5I", revision & ~_REVISION_MASK | _REVISION_2, *sets)
    return value
