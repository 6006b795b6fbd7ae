"""What a caller of a ledger says and gets: how it is kept, and the begin of what will end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keeping:
    """How a ledger is kept.

    Above `limit_bytes` what a guest causes is counted instead of kept, and above a quarter more
    nothing is written: then what must be written before it is done is not done.
    """

    file_bytes: int = 64 * 2**20
    limit_bytes: int = 2**30
    checkpoint_entries: int = 256
    checkpoint_s: float = 10.0
    refusals_per_s: int = 100


@dataclass(frozen=True, slots=True)
class Span:
    """The begin of something whose end is still to be written; `sequence` is its id."""

    sequence: int | None
    # What it was counted under, if it was folded: then its end is too.
    folded: str | None = None
