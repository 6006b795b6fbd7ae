"""The key that signs checkpoints and receipts, and the public keys that are believed."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from cloister.errors import HostError, RequestError
from cloister.ledger.ed25519 import (
    PrivateKey,
    can_sign,
    new_private_pem,
    public_bytes,
    read_private_key,
    verifies,
)
from cloister.ledger.place import key_directory, make_private

# The DER of every ed25519 public key begins so (RFC 8410); the 32 bytes of the key follow.
_SPKI = bytes.fromhex("302a300506032b6570032100")
_KEY_BYTES = 32
_MAXIMUM_FILE_BYTES = 4096


class PublicKey:
    """A public key; its id is the SHA-256 of its 32 bytes."""

    __slots__ = ("id", "raw")

    def __init__(self, raw: bytes) -> None:
        if len(raw) != _KEY_BYTES:
            raise RequestError(f"public key of {len(raw)} bytes; an ed25519 key has {_KEY_BYTES}")
        self.raw = raw
        self.id = hashlib.sha256(raw).hexdigest()

    def verifies(self, signature: bytes, data: bytes) -> bool:
        """Whether the holder of the private key signed exactly this; may raise Unsupported."""
        return verifies(self.raw, signature, data)

    def pem(self) -> str:
        """Return the key as text, the way openssl writes it."""
        body = base64.b64encode(_SPKI + self.raw).decode()
        return f"-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n"


class Signer:
    """The private key; it is opened when the first signature is asked for, not before.

    Loading the library takes some 20 ms, which a sandbox's start has not got; `warm` is for a
    thread.
    """

    def __init__(self, path: Path, public: PublicKey) -> None:
        self._path = path
        self._key: PrivateKey | None = None
        self.public = public

    @property
    def id(self) -> str:
        """The id of the key."""
        return self.public.id

    def sign(self, data: bytes) -> bytes:
        """Return the signature of the data."""
        return self._open().sign(data)

    def warm(self) -> None:
        """Load what signing needs, so that the first signature is as quick as the others."""
        self._open()

    def _open(self) -> PrivateKey:
        if self._key is None:
            key = read_private_key(self._path)
            if public_bytes(key) != self.public.raw:
                raise HostError(f"{self._path} does not belong to the public key beside it")
            self._key = key
        return self._key


def signer_for(state: Path) -> Signer | None:
    """Return the signer of a state directory, made at first use; None if nothing can sign."""
    return _signer(state) if can_sign() else None


@functools.lru_cache(maxsize=16)
def _signer(state: Path) -> Signer:
    directory = key_directory(state)
    private, public = directory / "ledger.key", directory / "ledger.pub"
    if not private.exists():
        make_private(directory)
        _write_once(private, new_private_pem(), 0o600)
    # Beside a key whose maker died in between there is no public one yet.
    if not public.exists():
        found = PublicKey(public_bytes(read_private_key(private)))
        _write_once(public, found.pem().encode(), 0o644)
    return Signer(private, read_public_key(public))


def _write_once(path: Path, data: bytes, mode: int) -> None:
    """Write a file whole or not at all; of several writers at once, the first one's stays."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    draft.unlink(missing_ok=True)
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink(missing_ok=True)


def read_public_key(path: Path) -> PublicKey:
    """Return the key of a PEM file; for that no library is needed."""
    with open(path, "rb") as file:
        text = file.read(_MAXIMUM_FILE_BYTES)
    return parse_public_key(text.decode("latin-1"), str(path))


def parse_public_key(pem: str, what: str = "the text") -> PublicKey:
    """Return the key of a PEM text."""
    lines = pem[:_MAXIMUM_FILE_BYTES].encode("utf-8", "replace").split(b"\n")
    wrong = RequestError(f"{what} is not an ed25519 public key; write one as openssl does, in PEM")
    if len(lines) < 3 or b"BEGIN PUBLIC KEY" not in lines[0]:
        raise wrong
    try:
        der = base64.b64decode(lines[1], validate=True)
    except binascii.Error:
        raise wrong from None
    if not der.startswith(_SPKI) or len(der) != len(_SPKI) + _KEY_BYTES:
        raise wrong
    return PublicKey(der[len(_SPKI) :])


def trusted_keys(state: Path) -> Mapping[str, PublicKey]:
    """Return the public keys that a state directory believes, by id."""
    try:
        paths = sorted(key_directory(state).glob("*.pub"))
    except OSError as error:
        raise HostError(f"the keys of {state} cannot be read: {error.strerror}") from error
    return {key.id: key for key in map(read_public_key, paths)}
