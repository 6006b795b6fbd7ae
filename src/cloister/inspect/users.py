"""Whom a user's name means inside a sandbox, by the sandbox's own list of users."""

from __future__ import annotations

from dataclasses import dataclass

from cloister.errors import FileError, NotFound
from cloister.model import NAMED_USERS, User
from cloister.model.profile import MAXIMUM_ID
from cloister.sandbox import Sandbox

# Lists of users are a few kilobytes; what is larger is not read to its end.
_MAXIMUM_LIST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Account:
    """A user to act as, and the variables that say so where the list of users knows them."""

    user: User
    env: dict[str, str]


async def find_account(sandbox: Sandbox, name: str) -> Account | None:
    """Return the user of that name or number; None where there is none."""
    for fields in await _lines(sandbox):
        if name in (fields[0], fields[2]) and fields[0]:
            ids = [_id(fields[2]), _id(fields[3])]
            if None not in ids:
                env = {"HOME": fields[5] or "/", "USER": fields[0], "LOGNAME": fields[0]}
                return Account(User(ids[0] or 0, ids[1] or 0), env)
    number = _id(name)
    if number is not None:
        return Account(User(number, number), {})
    known = NAMED_USERS.get(name)
    return None if known is None else Account(known, {})


async def _lines(sandbox: Sandbox) -> list[list[str]]:
    try:
        chunks = [chunk async for chunk in sandbox.files.stream("/etc/passwd", length=2**20)]
    except (NotFound, FileError):
        return []
    text = b"".join(chunks)[:_MAXIMUM_LIST_BYTES].decode("utf-8", "replace")
    found = [line.split(":") for line in text.splitlines()]
    return [fields for fields in found if len(fields) >= 7]


def _id(digits: str) -> int | None:
    if not digits.isdecimal() or not digits.isascii() or len(digits) > 5:
        return None
    return int(digits) if int(digits) <= MAXIMUM_ID else None
