"""What a caller of a ledger says and gets: how it is kept, and the begin of what will end."""

from __future__ import annotations

import os
from dataclasses import dataclass

from cloister.errors import RequestError
from cloister.model import parse_bytes

SIZE_VARIABLE = "CLOISTER_LEDGER_BYTES"
_LEAST_BYTES = 2**20


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


def usual_keeping() -> Keeping:
    """Return how ledgers are kept by the person who runs this process, or raise RequestError."""
    said = os.environ.get(SIZE_VARIABLE)
    if said is None:
        return Keeping()
    limit_bytes = parse_bytes(said, SIZE_VARIABLE)
    if limit_bytes < _LEAST_BYTES:
        raise RequestError(f"{SIZE_VARIABLE} is {said}; the least is 1MiB")
    return Keeping(limit_bytes=limit_bytes)


@dataclass(frozen=True, slots=True)
class Span:
    """The begin of something whose end is still to be written; `sequence` is its id."""

    sequence: int | None
    # What it was counted under, if it was folded: then its end is too.
    folded: str | None = None
