"""Who the code inside is: its profile, its user, and how far it is trusted."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from cloister.errors import RequestError
from cloister.model.quote import quote

# Each sandbox owns a range of 65,536 host ids; there is no other id to be inside.
MAXIMUM_ID = 65_535


class Profile(StrEnum):
    """What the code inside may do to its own sandbox; none reaches further than that.

    `default`: user 1000, no capabilities.
    `root`: user 0 inside, with the nine capabilities a package install needs.
    `debug`: as `default`, and processes may trace each other (ptrace) inside.
    """

    DEFAULT = "default"
    ROOT = "root"
    DEBUG = "debug"


class Trust(StrEnum):
    """How far the code inside is trusted; less trust asks for a stronger wall.

    `internal`: one's own agents, bounded risk.
    `untrusted`: outside users, moderate trust.
    `hostile`: code expected to attack, many tenants.
    """

    INTERNAL = "internal"
    UNTRUSTED = "untrusted"
    HOSTILE = "hostile"

    # Never compare members with < or >: they are strings, and would compare by spelling.
    def covers(self, needed: Trust) -> bool:
        """Whether a wall of this strength is enough for code trusted as `needed`."""
        order = list(Trust)
        return order.index(self) >= order.index(needed)


class User(NamedTuple):
    """A user and group id inside the sandbox."""

    uid: int
    gid: int


NAMED_USERS: Mapping[str, User] = {
    "user": User(1000, 1000),
    "root": User(0, 0),
    "nobody": User(65_534, 65_534),
}

_NUMERIC_USER = re.compile(r"([0-9]{1,5})(?::([0-9]{1,5}))?")


def parse_user(value: object, field: str = "user") -> User:
    """Return the ids of "user", "root", "nobody", 1000, "1000" or "1000:1000"."""
    user: User | None = None
    if isinstance(value, User):
        user = value
    elif isinstance(value, int) and not isinstance(value, bool):
        user = User(int(value), int(value))
    elif isinstance(value, str) and value in NAMED_USERS:
        return NAMED_USERS[value]
    elif isinstance(value, str) and (found := _NUMERIC_USER.fullmatch(value)):
        user = User(int(found[1]), int(found[2] if found[2] is not None else found[1]))
    if user is None:
        near = difflib.get_close_matches(value, NAMED_USERS, 1) if isinstance(value, str) else []
        meant = (
            f'did you mean "{near[0]}"?'
            if near
            else ('write "user", "root", "nobody", an id such as 1000, or "1000:1000"')
        )
        raise RequestError(f"{field} is {quote(value)}; {meant}")
    if not all(0 <= number <= MAXIMUM_ID for number in user):
        raise RequestError(f"{field} is {quote(value)}; ids are from 0 to {MAXIMUM_ID}")
    return user
