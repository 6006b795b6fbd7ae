"""Which ids an image's user has, by the image's own list of users, read out of its layers."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from cloister.errors import ImageRefused
from cloister.model import User, quote
from cloister.model.profile import MAXIMUM_ID
from cloister.store import as_owner

# Lists of users are a few kilobytes; what is larger is not read to its end.
_MAXIMUM_LIST_BYTES = 2**20
_OPAQUE = "user.overlay.opaque"


def find_user(text: str, layers: Sequence[Path]) -> User:
    """Return the ids of `text`: NAME, ID, NAME:GROUP or ID:ID. `layers` are top first."""
    name, _, group = text.partition(":")
    users = list(_records(layers, "passwd", 4))
    if name.isdecimal() and name.isascii():
        uid = _id(name, text)
        gid = next((gid for _, known, gid in users if known == uid), 0)
    else:
        found = next(((uid, gid) for known, uid, gid in users if known == name), None)
        if found is None:
            raise ImageRefused(f"the image's user is {quote(name)}, and its /etc/passwd has none")
        uid, gid = found
    if group:
        gid = _find_group(group, text, layers)
    return User(_within(uid, text), _within(gid, text))


def _find_group(group: str, text: str, layers: Sequence[Path]) -> int:
    if group.isdecimal() and group.isascii():
        return _id(group, text)
    for known, gid, _ in _records(layers, "group", 3):
        if known == group:
            return gid
    raise ImageRefused(f"the image's group is {quote(group)}, and its /etc/group has none")


def _id(digits: str, text: str) -> int:
    return _within(int(digits) if len(digits) <= 10 else MAXIMUM_ID + 1, text)


def _within(number: int, text: str) -> int:
    if number > MAXIMUM_ID:
        raise ImageRefused(f"the image's user is {quote(text)}; ids are from 0 to {MAXIMUM_ID}")
    return number


def _records(layers: Sequence[Path], name: str, least: int) -> Iterator[tuple[str, int, int]]:
    """Return (name, third field, fourth field) of each line that has them as numbers."""
    data = as_owner(read_account_file, [os.fspath(layer) for layer in layers], name)
    for line in data.decode("utf-8", "surrogateescape").splitlines():
        fields = line.split(":")
        if len(fields) < least:
            continue
        numbers = [field for field in fields[2:least] if field.isdecimal() and len(field) <= 10]
        if len(numbers) == least - 2:
            yield fields[0], int(numbers[0]), int(numbers[-1])


def read_account_file(layers: Sequence[str], name: str) -> bytes:
    """Return /etc/NAME as an overlay of the layers would show it; a missing one is empty.

    Opened by descriptor, one name at a time, and no link is followed: it would lead out of the
    layer into the host's own files.
    """
    for layer in layers:
        top = os.open(layer, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            found = _look(top, name)
        finally:
            os.close(top)
        if found is not None:
            return found
    return b""


def _look(top: int, name: str) -> bytes | None:
    """Return the content; None where layers below decide."""
    try:
        etc = os.open(
            "etc", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top
        )
    except FileNotFoundError:
        return None
    except OSError:
        # A link, a file, or the mark of a removed directory: there is no list here or below.
        return b""
    try:
        return _read(etc, name)
    except FileNotFoundError:
        return b"" if _is_opaque(etc) else None
    except OSError:
        return b""
    finally:
        os.close(etc)


def _read(etc: int, name: str) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    if not stat.S_ISREG(os.stat(name, dir_fd=etc, follow_symlinks=False).st_mode):
        return b""
    with open(os.open(name, flags, dir_fd=etc), "rb") as file:
        return file.read(_MAXIMUM_LIST_BYTES)


def _is_opaque(directory: int) -> bool:
    try:
        return os.getxattr(directory, _OPAQUE) == b"y"
    except OSError:
        return False
