"""Ids that carry their kind, so that one cannot be taken for another."""

from __future__ import annotations

import base64
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
_SANDBOX_ID = re.compile(rf"sb_[{_ALPHABET}]{{{_LENGTH}}}")


def new_sandbox_id() -> SandboxId:
    """Return an id never used before and never to be guessed."""
    # 17 random bytes are 28 characters; one call instead of one for each character.
    return SandboxId("sb_" + base64.b32encode(secrets.token_bytes(17)).decode().lower()[:_LENGTH])


def parse_sandbox_id(value: object) -> SandboxId:
    """Return the text as a sandbox id; it is safe as one name in a path."""
    if not isinstance(value, str) or _SANDBOX_ID.fullmatch(value) is None:
        raise RequestError(
            f'sandbox id is {quote(value)}; write "sb_" and {_LENGTH} characters of a-z and 2-7'
        )
    return SandboxId(value)
