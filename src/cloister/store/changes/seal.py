"""Seals a journal: what an interrupted apply is undone by must have been written by the host.

It lies in the tree that is applied to, which a sandbox may write to as well.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from cloister.errors import HostError
from cloister.store.place import make_private, state_directory

_KEY = "apply.key"
_KEY_BYTES = 32


def seal(text: bytes, staging: int) -> bytes:
    """Return a journal with a seal that holds for this staging directory alone."""
    return _seal(text, staging) + b"\n" + text


def unseal(sealed: bytes, staging: int, where: str) -> bytes:
    """Return the journal below its seal, or refuse it."""
    found, _, text = sealed.partition(b"\n")
    if not hmac.compare_digest(found, _seal(text, staging)):
        raise HostError(
            f"the journal in {where} was not written by an apply of this state directory, so "
            "nothing is undone by it; look at what is there, and move it away"
        )
    return text


def _seal(text: bytes, staging: int) -> bytes:
    place = os.fstat(staging)
    about = f"{place.st_dev} {place.st_ino}\n".encode()
    return hmac.new(_key(), about + text, hashlib.sha256).hexdigest().encode()


def _key() -> bytes:
    state = state_directory()
    make_private(state)
    path = state / _KEY
    if not path.exists():
        _make_key(path)
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise HostError(f"{path} has {len(key)} bytes, not {_KEY_BYTES}; move it away")
    return key


def _make_key(path: Path) -> None:
    written = path.with_name(f"{_KEY}-{secrets.token_hex(4)}")
    handle = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(handle, "wb") as file:
        file.write(secrets.token_bytes(_KEY_BYTES))
        file.flush()
        os.fsync(file.fileno())
    # Whole or not at all, and by whoever is first.
    with suppress(FileExistsError):
        os.link(written, path)
    written.unlink()
