"""Who owns a volume on disk, for somebody to own it inside."""

from __future__ import annotations

import os

from cloister.errors import RequestError
from cloister.model import User
from cloister.runtime.namespace import ids


def owner_on_disk(user: User) -> User:
    """Return the owner as it stands on disk, which depends on whose sandboxes these are."""
    if os.geteuid() == 0:
        return user
    if ids.find_sub_ids() is None:
        return User(os.getuid(), os.getgid())
    ranges = ids.slice_map(ids.STORE_SLICE, None)
    uid, gid = ids.outside(ranges, user.uid), ids.outside(ranges, user.gid)
    if uid is None or gid is None:
        raise RequestError(
            f"user is {user.uid}:{user.gid}, which sandboxes of yours do not have; "
            "write user, root or nobody"
        )
    return User(uid, gid)
