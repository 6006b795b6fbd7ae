"""The receipt of a task: one document of what ran, changed, left, was denied and went unseen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cloister.ledger.text import Text, Texts

FORMAT = 1


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """Which ledger it was made from, up to which entry, and how whole that is."""

    entries: int
    last_sequence: int
    last_hash: Text
    lost: int
    folded: int
    recovered: int
    unfinished: int
    signed_through: int | None = None
    key: Text | None = None


@dataclass(frozen=True, slots=True)
class Ran:
    """One process: the digest of its argv, and how it ended."""

    argv_sha256: Text
    by: Literal["api", "inside"]
    exit_code: int | None = None
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class Processes:
    """All processes in numbers, and the first of them; `argv_sha256` is of every argv in order."""

    started: int
    ended: int
    by_api: int
    failed: int
    guest_word: int
    argv_sha256: Text
    first: tuple[Ran, ...]


@dataclass(frozen=True, slots=True)
class Changes:
    """What became of the files; `steps_sha256` is of the steps' digests in order."""

    steps: int
    added: int
    modified: int
    removed: int
    content_bytes: int
    steps_sha256: Text
    diff: Text | None = None


@dataclass(frozen=True, slots=True)
class Reached:
    """What went to one host and came from it."""

    host: Text
    connections: int
    requests: int
    refused: int
    bytes_out: int
    bytes_in: int


@dataclass(frozen=True, slots=True)
class SecretUse:
    """How often a secret was put in, for which hosts, and how often that was refused."""

    name: Text
    hosts: Texts
    used: int
    blocked: int


@dataclass(frozen=True, slots=True)
class Approval:
    """What a person was asked, and what the answer was."""

    number: int
    what: Text
    rule: Text
    answer: Text
    who: Text | None = None


@dataclass(frozen=True, slots=True)
class Denial:
    """How often a rule said no to one kind of request."""

    kind: Text
    rule: Text
    count: int


@dataclass(frozen=True, slots=True)
class LimitCount:
    """How often a limit was reached."""

    limit: Text
    count: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """Everything the receipt says; `coverage` is what could not be seen, in sentences."""

    format: int
    sandbox: Text
    ledger: LedgerFacts
    processes: Processes
    changes: Changes
    hosts: tuple[Reached, ...]
    secrets: tuple[SecretUse, ...]
    approvals: tuple[Approval, ...]
    denials: tuple[Denial, ...]
    limits: tuple[LimitCount, ...]
    snapshots: Texts
    coverage: Texts
    label: Text | None = None
    runtime: Text | None = None
    plan: Text | None = None
    policy: Text | None = None
    image: Text | None = None
    base_snapshot: Text | None = None
    began_ns: int | None = None
    ended_ns: int | None = None
    ending: Text | None = None
