"""Entries of the ledger's own keeping: opened, checkpoint, recovered, lost, folded, closed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cloister.ledger.payload import Payload
from cloister.ledger.text import Text, Texts

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Opened(Payload):
    """A file of the ledger begins, or a closed ledger is written again.

    `key` is the id of the key that signs from here on; without one, `unsigned` says why.
    """

    kind: ClassVar[str] = "ledger.opened"
    format: int
    file: int
    key: Text | None = None
    unsigned: Text | None = None


@dataclass(frozen=True, slots=True)
class Recovered(Payload):
    """A ledger whose writer ended without closing, or broke off in a line, is gone on with.

    What was torn stays at the end of its file and is sealed here: each of `torn` is the file's
    name, the number of bytes after its last line feed, and their SHA-256. If a checkpoint shows
    that there had been more entries, `missing_through` is its sequence number.
    """

    kind: ClassVar[str] = "ledger.recovered"
    format: int
    file: int
    torn: Texts
    missing_through: int | None = None
    key: Text | None = None
    unsigned: Text | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint(Payload):
    """Every entry up to `of`, whose hash is `hash`, is vouched for by `signature` under `key`.

    The `final` one follows the closing of the ledger.
    """

    kind: ClassVar[str] = "ledger.checkpoint"
    of: int
    hash: Text
    at_ns: int
    final: bool
    key: Text | None = None
    signature: Text | None = None


@dataclass(frozen=True, slots=True)
class Lost(Payload):
    """So many entries could not be written, between these times."""

    kind: ClassVar[str] = "ledger.lost"
    count: int
    first_ns: int
    last_ns: int
    reason: Text


@dataclass(frozen=True, slots=True)
class Folded(Payload):
    """So many entries of one kind came in a flood and were counted instead of kept.

    `sha256` is of their payloads in order, one a line, so what was folded can still be proved.
    """

    kind: ClassVar[str] = "ledger.folded"
    of: Text
    about: Text
    count: int
    refusals: int
    bytes_out: int
    bytes_in: int
    first_ns: int
    last_ns: int
    sha256: Text


@dataclass(frozen=True, slots=True)
class Retired(Payload):
    """The files up to `file` were removed on purpose; `hash` is of their last entry, `through`."""

    kind: ClassVar[str] = "ledger.retired"
    file: int
    through: int
    hash: Text


@dataclass(frozen=True, slots=True)
class Closed(Payload):
    """Nothing more is to come; so much was lost and folded in all."""

    kind: ClassVar[str] = "ledger.closed"
    lost: int
    folded: int
