"""Ids that carry their kind, so that one cannot be taken for another."""

from __future__ import annotations

import re
import secrets
from typing import NewType

from cloister.errors import RequestError
from cloister.model.quote import quote

SandboxId = NewType("SandboxId", str)
ImageId = NewType("ImageId", str)
SnapshotId = NewType("SnapshotId", str)
GrantId = NewType("GrantId", str)
SessionId = NewType("SessionId", str)

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
# 26 characters of 5 bits: 130 bits, so an id cannot be guessed by another tenant.
_LENGTH = 26
# For each byte one of them, each of them for as many bytes: 5 bits of every byte.
_CHARACTERS = bytes(ord(_ALPHABET[byte % len(_ALPHABET)]) for byte in range(256))
_SANDBOX_ID = re.compile(rf"sb_[{_ALPHABET}]{{{_LENGTH}}}")


def new_sandbox_id() -> SandboxId:
    """Return an id never used before and never to be guessed."""
    return SandboxId("sb_" + secrets.token_bytes(_LENGTH).translate(_CHARACTERS).decode("ascii"))


def parse_sandbox_id(value: object) -> SandboxId:
    """Return the text as a sandbox id; it is safe as one name in a path."""
    if not isinstance(value, str) or _SANDBOX_ID.fullmatch(value) is None:
        raise RequestError(
            f'sandbox id is {quote(value)}; write "sb_" and {_LENGTH} characters of a-z and 2-7'
        )
    return SandboxId(value)
