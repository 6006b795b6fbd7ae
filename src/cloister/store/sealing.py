"""Files under the owner's key: sealed a piece at a time, each knowing its place and its file."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from cloister.errors import HostError, RequestError, Unsupported

KEY_BYTES = 32
SALT_BYTES = 32
_MAGIC = b"cloister-memory-1\n"
# Of one that means nothing without those it stands on: who does not know of them must not read it.
_MAGIC_OVER = b"cloister-memory-2\n"
# A piece says which one it is and whether it is the last.
_PIECE = 1024 * 1024
_TAG_BYTES = 16
_MOST_FACTS_BYTES = 64 * 1024


@dataclass(slots=True)
class Sealed:
    """A sealed file that is being read: what was said of it, and its pieces after that."""

    name: str
    salt: bytes
    facts: dict[str, Any]
    _pieces: Iterator[bytes] = field(repr=False)

    def read(self, size: int) -> Iterator[bytes]:
        """Yield the next so many bytes, which are those of one file."""
        while size > 0:
            piece = next(self._pieces, None)
            if piece is None:
                raise HostError(f"the memory of {self.name} is not all there; remove the snapshot")
            yield piece
            size -= len(piece)


def write_sealed(
    out: IO[bytes],
    name: str,
    facts: Mapping[str, Any],
    files: Iterable[Path],
    key: bytes,
    *,
    stands_on_others: bool,
) -> None:
    """Write some files after what is said of them; `name` is what it must be opened as."""
    salt = secrets.token_bytes(SALT_BYTES)
    out.write((_MAGIC_OVER if stands_on_others else _MAGIC) + salt)
    cipher, number = _cipher(key, salt), 0
    pieces = _pieces(json.dumps(facts).encode(), files)
    piece = next(pieces)
    for after in pieces:
        out.write(_seal(cipher, number, piece, name, last=False))
        number, piece = number + 1, after
    out.write(_seal(cipher, number, piece, name, last=True))
    out.flush()
    os.fsync(out.fileno())


def open_sealed(file: IO[bytes], name: str, key: bytes) -> Sealed:
    """Read what was said of a sealed file; its pieces are looked at as they are read."""
    magic = file.read(len(_MAGIC))
    if magic not in (_MAGIC, _MAGIC_OVER):
        raise HostError(f"the memory of {name} is no file of ours; remove the snapshot")
    salt = file.read(SALT_BYTES)
    pieces = _opened(file, _cipher(key, salt), name)
    head = next(pieces, None)
    if head is None:
        raise HostError(f"the memory of {name} is not all there; remove the snapshot")
    facts = json.loads(head[4:])
    if bool(facts.get("under")) is not (magic == _MAGIC_OVER):
        raise HostError(f"the memory of {name} is damaged; remove the snapshot")
    return Sealed(name, salt, facts, pieces)


def _pieces(head: bytes, paths: Iterable[Path]) -> Iterator[bytes]:
    """Yield everything in pieces, none of which holds bytes of two files."""
    yield len(head).to_bytes(4, "little") + head
    for path in paths:
        with open(os.open(path, _PLAINLY), "rb") as file:
            while piece := file.read(_PIECE):
                yield piece


# Whoever wrote them was inside a wall that may have been broken: a link would lead to the host's
# files, and a pipe would be waited for.
_PLAINLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _seal(cipher: Any, number: int, piece: bytes, name: str, *, last: bool) -> bytes:
    sealed: bytes = cipher.encrypt(_nonce(number, last), piece, name.encode())
    return len(sealed).to_bytes(4, "little") + sealed


def _opened(file: IO[bytes], cipher: Any, name: str) -> Iterator[bytes]:
    from cryptography.exceptions import InvalidTag

    number = 0
    length = file.read(4)
    while length:
        size = int.from_bytes(length, "little")
        if size > _PIECE + _TAG_BYTES + _MOST_FACTS_BYTES:
            raise HostError(f"the memory of {name} is damaged; remove the snapshot")
        sealed, length = file.read(size), file.read(4)
        try:
            yield cipher.decrypt(_nonce(number, not length), sealed, name.encode())
        except InvalidTag:
            raise HostError(
                f"the memory of {name} is damaged, or was sealed under another key; name the "
                "right one with CLOISTER_MEMORY_KEY"
            ) from None
        number += 1


def _nonce(number: int, last: bool) -> bytes:
    # Each file has a key of its own, so that a counter never repeats under one.
    return number.to_bytes(11, "little") + bytes((last,))


def _cipher(key: bytes, salt: bytes) -> Any:
    if len(key) != KEY_BYTES:
        raise RequestError(f"a key of {len(key)} bytes for memory; it has {KEY_BYTES}")
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError:
        raise Unsupported(
            "saved memory is encrypted, which needs the Python package cryptography; "
            "pip install 'cloister[memory]'"
        ) from None
    return AESGCM(HKDF(SHA256(), KEY_BYTES, salt, b"cloister memory").derive(key))
