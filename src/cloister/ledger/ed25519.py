"""The one place that knows the package cryptography, which is there only with cloister[ledger]."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from pathlib import Path
from typing import Any, Protocol

from cloister.errors import HostError, Unsupported

UNSIGNED = "the package cryptography is not installed; pip install 'cloister[ledger]'"


class PrivateKey(Protocol):
    """What signing needs of a private key of that package."""

    def sign(self, data: bytes) -> bytes:
        """Return the signature of the data."""

    def public_key(self) -> Any:
        """Return the public half."""


@functools.cache
def can_sign() -> bool:
    """Whether signatures can be made and checked here."""
    return importlib.util.find_spec("cryptography") is not None


def require_signing() -> None:
    """Raise Unsupported where signatures can be neither made nor checked."""
    if not can_sign():
        raise Unsupported(f"signatures cannot be checked: {UNSIGNED}")


def new_private_pem() -> bytes:
    """Return a new private key as PEM."""
    key = _ed25519().Ed25519PrivateKey.generate()
    form = _load("cryptography.hazmat.primitives.serialization")
    pem: bytes = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    return pem


def read_private_key(path: Path) -> PrivateKey:
    """Return the private key of a PEM file."""
    form = _load("cryptography.hazmat.primitives.serialization")
    try:
        key = form.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise HostError(f"{path} cannot be read as a private key; move it away") from error
    if not isinstance(key, _ed25519().Ed25519PrivateKey):
        raise HostError(f"{path} is not an ed25519 key; move it away")
    private: PrivateKey = key
    return private


def public_bytes(key: PrivateKey) -> bytes:
    """Return the 32 bytes of the public half of a key."""
    raw: bytes = key.public_key().public_bytes_raw()
    return raw


def verifies(public: bytes, signature: bytes, data: bytes) -> bool:
    """Whether the holder of the private half signed exactly this."""
    require_signing()
    invalid = _load("cryptography.exceptions").InvalidSignature
    try:
        _ed25519().Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (invalid, ValueError):
        return False
    return True


def _ed25519() -> Any:
    return _load("cryptography.hazmat.primitives.asymmetric.ed25519")


def _load(name: str) -> Any:
    # By name and when needed: the package is optional, and takes some 20 ms to load.
    return importlib.import_module(name)
