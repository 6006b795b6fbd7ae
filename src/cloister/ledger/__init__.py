"""The append-only, chained record of a sandbox. Here is what writes it; `reading` has the rest."""

from __future__ import annotations

from cloister.ledger.calls import Called
from cloister.ledger.checkpoint import Anchor
from cloister.ledger.crossings import Connected, ConnectionClosed, NameAsked, Requested, Responded
from cloister.ledger.decisions import (
    ApprovalAnswered,
    ApprovalAsked,
    EgressChanged,
    Granted,
    Judged,
    Revoked,
    SecretBlocked,
    SecretsRenewed,
    SecretUsed,
)
from cloister.ledger.entry import KINDS, Entry, Unknown
from cloister.ledger.keeping import Checkpoint, Closed, Folded, Lost, Opened, Recovered, Retired
from cloister.ledger.keys import Signer, signer_for
from cloister.ledger.lifecycle import (
    Forked,
    Launched,
    LimitHit,
    NotLaunched,
    Paused,
    Planned,
    Promoted,
    Resumed,
    Rewound,
    SnapshotTaken,
    Stopped,
)
from cloister.ledger.payload import Payload, Spent
from cloister.ledger.shape import encode_fields
from cloister.ledger.terms import Keeping, Span, usual_keeping
from cloister.ledger.text import BadEntry, Cut, CutList, facts
from cloister.ledger.trace import Trace, parse_trace
from cloister.ledger.work import FileAccessed, FilesChanged, ProcessEnded, ProcessStarted
from cloister.ledger.writer import Ledger

__all__ = [
    "KINDS",
    "Anchor",
    "ApprovalAnswered",
    "ApprovalAsked",
    "BadEntry",
    "Called",
    "Checkpoint",
    "Closed",
    "Connected",
    "ConnectionClosed",
    "Cut",
    "CutList",
    "EgressChanged",
    "Entry",
    "FileAccessed",
    "FilesChanged",
    "Folded",
    "Forked",
    "Granted",
    "Judged",
    "Keeping",
    "Launched",
    "Ledger",
    "LimitHit",
    "Lost",
    "NameAsked",
    "NotLaunched",
    "Opened",
    "Paused",
    "Payload",
    "Planned",
    "ProcessEnded",
    "ProcessStarted",
    "Promoted",
    "Recovered",
    "Requested",
    "Responded",
    "Resumed",
    "Retired",
    "Revoked",
    "Rewound",
    "SecretBlocked",
    "SecretUsed",
    "SecretsRenewed",
    "Signer",
    "SnapshotTaken",
    "Span",
    "Spent",
    "Stopped",
    "Trace",
    "Unknown",
    "encode_fields",
    "facts",
    "parse_trace",
    "signer_for",
    "usual_keeping",
]
