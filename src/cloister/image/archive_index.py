"""Where the files of a tar are, without unpacking any: names, offsets and sizes, all bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from cloister.errors import ImageRefused
from cloister.image.source import Tick

_BLOCK = 512
_MAXIMUM_EXTENDED_BYTES = 64 * 1024
_REGULAR = (b"0", b"7", b"\0")
_HARD, _SYMBOLIC = b"1", b"2"
_WITHOUT_CONTENT = (b"1", b"2", b"3", b"4", b"5", b"6")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file's content is."""

    offset: int
    size_bytes: int


def find_places(file: BinaryIO, maximum_entries: int, tick: Tick) -> dict[str, Place]:
    """Return where each file's content is; a link to a file of the archive is that file."""
    places: dict[str, Place] = {}
    links: dict[str, str] = {}
    for count, (kind, name, target, place) in enumerate(_entries(file)):
        tick(0)
        if count >= maximum_entries:
            raise ImageRefused(f"the archive has more than {maximum_entries} entries")
        if kind in _REGULAR:
            places[name] = place
        elif kind == _HARD:
            links[name] = target
        elif kind == _SYMBOLIC:
            links[name] = _joined(name, target)
    for name, target in links.items():
        if target in places:
            places.setdefault(name, places[target])
    return places


def _entries(file: BinaryIO) -> Iterator[tuple[bytes, str, str, Place]]:
    extended: dict[str, str] = {}
    while header := file.read(_BLOCK):
        if len(header) < _BLOCK:
            raise ImageRefused("the archive ends in the middle of a header")
        if header == bytes(_BLOCK):
            return
        if _number(header[148:156]) != sum(header[:148]) + 8 * 32 + sum(header[156:]):
            raise ImageRefused("the file is no archive of images, or a damaged one")
        kind, size_bytes = header[156:157], _number(header[124:136])
        if kind in (b"x", b"g", b"L", b"K"):
            extended |= _extension(kind, _content(file, size_bytes))
            continue
        size_bytes = _decimal(extended["size"]) if "size" in extended else size_bytes
        if kind in _WITHOUT_CONTENT:
            size_bytes = 0
        name = extended.get("path") or _name(header)
        target = extended.get("linkpath") or _text(header[157:257])
        extended = {}
        yield kind, name.removeprefix("./"), target, Place(file.tell(), size_bytes)
        file.seek(-size_bytes % _BLOCK + size_bytes, 1)


def _name(header: bytes) -> str:
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{_text(header[:100])}" if prefix else _text(header[:100])


def _content(file: BinaryIO, size_bytes: int) -> bytes:
    if size_bytes > _MAXIMUM_EXTENDED_BYTES:
        raise ImageRefused(f"a header of the archive has {size_bytes} bytes")
    content = file.read(size_bytes + -size_bytes % _BLOCK)[:size_bytes]
    if len(content) < size_bytes:
        raise ImageRefused("the archive ends in the middle of a header")
    return content


def _extension(kind: bytes, content: bytes) -> dict[str, str]:
    if kind == b"L":
        return {"path": _text(content)}
    if kind == b"K":
        return {"linkpath": _text(content)}
    if kind == b"g":
        return {}
    found = {}
    while content:
        digits, space, _ = content.partition(b" ")
        length = _decimal(_text(digits))
        record = content[len(digits) + 1 : length]
        key, equals, value = record.partition(b"=")
        if not space or not equals or not record.endswith(b"\n"):
            raise ImageRefused("a header of the archive is damaged")
        found[_text(key)] = _text(value[:-1])
        content = content[length:]
    return {key: found[key] for key in ("path", "linkpath", "size") if key in found}


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _decimal(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise ImageRefused("a header of the archive is damaged")
    return int(text)


def _number(field: bytes) -> int:
    if field[0] & 0x80:
        value = int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
        if value >= 2**62:
            raise ImageRefused("a header of the archive has a size that cannot be")
        return value
    digits = field.strip(b" \0").partition(b"\0")[0]
    try:
        return int(digits or b"0", 8)
    except ValueError as error:
        raise ImageRefused("the file is no archive of images, or a damaged one") from error


def _joined(name: str, target: str) -> str:
    """Return what a symbolic link means, as a name of the archive; it is only ever looked up."""
    parts = name.split("/")[:-1]
    for part in target.split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in ("", ".", ".."):
            parts.append(part)
    return "/".join(parts)
