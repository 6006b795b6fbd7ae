"""One difference between what a sandbox started from and what it holds now, and how it is shown."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from cloister.errors import RequestError
from cloister.model.quote import quote


class ChangeKind(StrEnum):
    """Whether a path is new, different or gone."""

    ADDED = "added"
    CHANGED = "changed"
    DELETED = "deleted"


class EntryType(StrEnum):
    """What stands at a path."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    FIFO = "fifo"
    SOCKET = "socket"
    CHARACTER_DEVICE = "character-device"
    BLOCK_DEVICE = "block-device"


class Aspect(StrEnum):
    """In what a path that was there before differs now."""

    CONTENT = "content"
    LINK = "link"
    MODE = "mode"
    OWNER = "owner"
    TYPE = "type"
    XATTRS = "xattrs"


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one path inside.

    `path` is absolute and may hold any bytes but zero. `type` is what stands there now, of a
    deleted path what stood there. A deleted directory stands for all that was in it. `size` is
    the content's now, and so are `mode`, `uid` and `gid`, which are None once deleted.
    `hard_link` is an earlier path of the same walk that is the same file.
    """

    path: bytes
    kind: ChangeKind
    type: EntryType
    aspects: frozenset[Aspect] = frozenset()
    size: int = 0
    mode: int | None = None
    old_mode: int | None = None
    old_type: EntryType | None = None
    uid: int | None = None
    gid: int | None = None
    target: bytes | None = None
    hard_link: bytes | None = None

    def display(self) -> str:
        """Return one line that is safe on a terminal: a letter, the path, what changed."""
        letter = _LETTERS[self.kind]
        notes = [str(aspect) for aspect in sorted(self.aspects)]
        if self.old_type is not None and self.old_type is not self.type:
            notes.append(f"was {self.old_type}")
        if Aspect.MODE in self.aspects and self.mode is not None and self.old_mode is not None:
            notes.append(f"{self.old_mode:04o} to {self.mode:04o}")
        path = escape(self.path)
        if self.type is EntryType.DIRECTORY and path != "/":
            path += "/"
        if self.target is not None:
            path += f" -> {escape(self.target)}"
        return f"{letter} {path}" + (f"  ({', '.join(notes)})" if notes else "")

    def to_json(self) -> dict[str, object]:
        """Return the change as plain values; what is None or empty is left out.

        Bytes are text where they are valid UTF-8; otherwise the text is escaped, and the bytes
        stand beside it under the same name with `_base64`.
        """
        found: dict[str, object] = {"kind": str(self.kind), "type": str(self.type)}
        _put_bytes(found, "path", self.path)
        if self.aspects:
            found["aspects"] = [str(aspect) for aspect in sorted(self.aspects)]
        if self.type is EntryType.FILE and self.kind is not ChangeKind.DELETED:
            found["size"] = self.size
        for name in ("mode", "old_mode"):
            if (mode := getattr(self, name)) is not None:
                found[name] = f"{mode:04o}"
        for name in ("old_type", "uid", "gid"):
            if (value := getattr(self, name)) is not None:
                found[name] = value if isinstance(value, int) else str(value)
        for name in ("target", "hard_link"):
            if (text := getattr(self, name)) is not None:
                _put_bytes(found, name, text)
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, object]) -> Change:
        """Return the change that `to_json` wrote."""
        unknown = set(found) - _JSON_NAMES
        if unknown:
            raise RequestError(f"a change has no {quote(min(unknown))}; it is from another version")
        try:
            return _from_json(found)
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise RequestError(f"a change cannot be read: {error}") from error


_LETTERS = {ChangeKind.ADDED: "A", ChangeKind.CHANGED: "C", ChangeKind.DELETED: "D"}
_JSON_NAMES = frozenset(
    (
        *("kind", "type", "aspects", "size", "mode", "old_mode", "old_type", "uid", "gid"),
        *("path", "path_base64", "target", "target_base64", "hard_link", "hard_link_base64"),
    )
)


def _from_json(found: Mapping[str, object]) -> Change:
    path = _take_bytes(found, "path")
    if path is None:
        raise KeyError("path")
    aspects = found.get("aspects", [])
    if not isinstance(aspects, list):
        raise TypeError("aspects is no list")
    old_type = found.get("old_type")
    return Change(
        path=path,
        kind=ChangeKind(str(found["kind"])),
        type=EntryType(str(found["type"])),
        aspects=frozenset(Aspect(str(aspect)) for aspect in aspects),
        size=_take_number(found, "size") or 0,
        mode=_take_mode(found, "mode"),
        old_mode=_take_mode(found, "old_mode"),
        old_type=None if old_type is None else EntryType(str(old_type)),
        uid=_take_number(found, "uid"),
        gid=_take_number(found, "gid"),
        target=_take_bytes(found, "target"),
        hard_link=_take_bytes(found, "hard_link"),
    )


def _put_bytes(found: dict[str, object], name: str, value: bytes) -> None:
    try:
        found[name] = value.decode()
    except UnicodeDecodeError:
        found[name] = escape(value)
        found[name + "_base64"] = base64.b64encode(value).decode()


def _take_bytes(found: Mapping[str, object], name: str) -> bytes | None:
    if (exact := found.get(name + "_base64")) is not None:
        return base64.b64decode(str(exact), validate=True)
    text = found.get(name)
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError(f"{name} is no text")
    return text.encode()


def _take_mode(found: Mapping[str, object], name: str) -> int | None:
    mode = found.get(name)
    return None if mode is None else int(str(mode), 8)


def _take_number(found: Mapping[str, object], name: str) -> int | None:
    number = found.get(name)
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"{name} is no number")
    return number


def escape(value: bytes) -> str:
    """Return any bytes as one line of printable text from which they can be told exactly.

    The names come from inside: a terminal must not obey them, and no two may look the same.
    """
    shown = []
    for character in value.decode(errors="surrogateescape"):
        if "\udc80" <= character <= "\udcff":
            shown.append(f"\\x{ord(character) - 0xDC00:02x}")
        elif character == "\\":
            shown.append("\\\\")
        elif character.isprintable():
            shown.append(character)
        else:
            # The bytes and not the code point: \x is then always one byte of the name.
            shown.extend(f"\\x{byte:02x}" for byte in character.encode())
    return "".join(shown)


def path_order(path: bytes) -> bytes:
    """Return what to sort paths by: each directory is followed by all that is in it."""
    # No name holds a zero byte, so a path ends before any other that goes on.
    return path.replace(b"/", b"\0")
