"""A checkpoint outside its ledger: what a person keeps elsewhere to find a later truncation."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cloister.errors import RequestError
from cloister.ledger.dsse import signed_bytes
from cloister.ledger.ed25519 import can_sign
from cloister.ledger.keeping import Checkpoint
from cloister.ledger.keys import PublicKey, Signer
from cloister.ledger.place import open_existing
from cloister.ledger.shape import canonical
from cloister.ledger.text import readable

_TYPE = "application/vnd.cloister.checkpoint+json"
_MAXIMUM_LINE_BYTES = 4096

# "unchecked" is a signature that this installation cannot check, for want of the library.
Standing = Literal["verified", "unsigned", "unchecked", "unknown key", "bad signature"]


@dataclass(frozen=True, slots=True)
class Anchor:
    """One checkpoint with the sandbox it is of: entry `sequence` has the hash `hash`."""

    sandbox: str
    sequence: int
    hash: str
    at_ns: int
    key: str | None = None
    signature: str | None = None

    def encode(self) -> bytes:
        """Return the one line that is kept of it."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return canonical({name: value for name, value in fields.items() if value is not None})

    def payload(self, *, final: bool) -> Checkpoint:
        """Return it as an entry says it."""
        return Checkpoint(self.sequence, self.hash, self.at_ns, final, self.key, self.signature)

    def standing(self, keys: Mapping[str, PublicKey]) -> Standing:
        """Say what its signature is worth to somebody who believes these keys."""
        if self.key is None or self.signature is None:
            return "unsigned"
        key = keys.get(self.key)
        if key is None:
            return "unknown key"
        if not can_sign():
            return "unchecked"
        try:
            signature = base64.b64decode(self.signature, validate=True)
        except (binascii.Error, ValueError):
            return "bad signature"
        return "verified" if key.verifies(signature, self._signed()) else "bad signature"

    def _signed(self) -> bytes:
        body = {
            "at_ns": self.at_ns,
            "hash": self.hash,
            "key": self.key,
            "sandbox": self.sandbox,
            "sequence": self.sequence,
        }
        return signed_bytes(_TYPE, canonical(body))


def sign_anchor(
    sandbox: str, sequence: int, hash: str, at_ns: int, signer: Signer | None
) -> Anchor:
    """Return the checkpoint of an entry, signed if there is a signer."""
    if signer is None:
        return Anchor(sandbox, sequence, hash, at_ns)
    bare = Anchor(sandbox, sequence, hash, at_ns, signer.id)
    signature = base64.b64encode(signer.sign(bare._signed())).decode()
    return Anchor(sandbox, sequence, hash, at_ns, signer.id, signature)


def anchor_of(sandbox: str, payload: Checkpoint) -> Anchor:
    """Return the checkpoint that an entry says."""
    key = None if payload.key is None else readable(payload.key)
    signature = None if payload.signature is None else readable(payload.signature)
    return Anchor(sandbox, payload.of, readable(payload.hash), payload.at_ns, key, signature)


def parse_anchor(line: bytes) -> Anchor:
    """Return the checkpoint of a line that was kept."""
    try:
        value = json.loads(line)
        anchor = Anchor(**value)
    except (ValueError, TypeError, RecursionError) as error:
        raise RequestError(
            "not a checkpoint; `cloister ledger verify --keep` writes one"
        ) from error
    texts = (anchor.sandbox, anchor.hash, anchor.key or "", anchor.signature or "")
    numbers = (anchor.sequence, anchor.at_ns)
    if not all(isinstance(text, str) for text in texts) or not all(
        type(number) is int and number >= 0 for number in numbers
    ):
        raise RequestError("not a checkpoint; its fields have the wrong types")
    return anchor


def read_anchors(path: Path, *, tolerant: bool = False) -> Iterator[Anchor]:
    """Yield the checkpoints that were kept in a file, one a line.

    `tolerant` leaves out lines that are none: what a writer that was killed left half-written.
    """
    fd = open_existing(path)
    with open(fd, "rb") as file:
        while line := file.readline(_MAXIMUM_LINE_BYTES):
            try:
                anchor = parse_anchor(line)
            except RequestError:
                if not tolerant:
                    raise
            else:
                yield anchor
