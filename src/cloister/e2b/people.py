"""Who a call acts as inside a sandbox, where they are at home, and what a path means to them."""

from __future__ import annotations

import base64
import binascii
import posixpath
from dataclasses import dataclass

from cloister.e2b.refusal import CallRefused
from cloister.errors import CloisterError
from cloister.model import NAMED_USERS, User, quote
from cloister.sandbox import Sandbox

DEFAULT_USER = "user"
_MAXIMUM_ACCOUNTS_BYTES = 2**20
_HOMES = {"root": "/root", "user": "/home/user"}


@dataclass(frozen=True, slots=True)
class Person:
    """One user inside: what they are called, their ids, and their home."""

    name: str
    user: User
    home: str

    def place(self, path: str) -> str:
        """Return the absolute path that this user means."""
        if not path or path == "~":
            return self.home
        if path.startswith("~/"):
            path = path[2:]
        elif path.startswith("~"):
            raise CallRefused(
                "invalid_argument", f"path {quote(path)} names another user's home; write it out"
            )
        # "//" at the front means something of its own to POSIX, and nothing to Linux.
        return "/" + posixpath.normpath(posixpath.join(self.home, path)).lstrip("/")

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that say who this is."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


async def find_person(sandbox: Sandbox, name: str) -> Person:
    """Return the user of that name; the sandbox's own list of accounts is asked for others."""
    if name in _HOMES:
        return Person(name, NAMED_USERS[name], _HOMES[name])
    for fields in await _accounts(sandbox, "/etc/passwd"):
        if fields[0] == name and len(fields) >= 6 and fields[5].startswith("/"):
            ids = _ids(fields[2], fields[3])
            if ids is not None:
                return Person(name, ids, posixpath.normpath(fields[5]))
    # The name is the caller's own; how it is quoted is part of the protocol.
    raise CallRefused("unauthenticated", f"invalid username: '{name[:256]}'")


async def names_of(sandbox: Sandbox, uid: int, gid: int) -> tuple[str, str]:
    """Return the names of a user and a group, or their numbers where they have none."""
    known = {0: "root", 1000: "user"}
    if uid in known and gid in known:
        return known[uid], known[gid]
    return await _name(sandbox, "/etc/passwd", uid), await _name(sandbox, "/etc/group", gid)


async def _name(sandbox: Sandbox, path: str, number: int) -> str:
    for fields in await _accounts(sandbox, path):
        if len(fields) > 2 and fields[2] == str(number) and fields[0]:
            return fields[0][:256]
    return str(number)


async def _accounts(sandbox: Sandbox, path: str) -> list[list[str]]:
    # Whoever is root inside writes this file: it decides about that inside only.
    try:
        text = await sandbox.files.read_text(path, limit=_MAXIMUM_ACCOUNTS_BYTES)
    except CloisterError:
        return []
    return [line.split(":") for line in text.splitlines()]


def _ids(uid: str, gid: str) -> User | None:
    if not (uid.isdecimal() and gid.isdecimal() and len(uid) < 6 and len(gid) < 6):
        return None
    user = User(int(uid), int(gid))
    return user if max(user) <= 65_535 else None


def named_in(authorization: str | None) -> str:
    """Return the user that an `Authorization: Basic` header names; there is no password."""
    if not authorization:
        return DEFAULT_USER
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return DEFAULT_USER
    try:
        name, _, _ = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise CallRefused("unauthenticated", "the authorization header is not base64") from None
    return name or DEFAULT_USER
