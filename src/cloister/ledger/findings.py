"""What a check of a ledger found: faults with their places, and what is known of the rest."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cloister.ledger.checkpoint import Anchor


class Fault(StrEnum):
    """What can be wrong with a ledger."""

    EDITED = "edited"
    MALFORMED = "malformed"
    MISSING = "missing"
    REORDERED = "reordered"
    DUPLICATED = "duplicated"
    TRUNCATED = "truncated"
    TORN = "torn"
    FOREIGN = "foreign"
    UNKNOWN_KEY = "unknown key"
    BAD_SIGNATURE = "bad signature"
    UNSIGNED = "unsigned"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: what, where, and in words; line 0 is the file as a whole."""

    fault: Fault
    file: str
    line: int
    sequence: int | None
    message: str

    def __str__(self) -> str:
        line = f" line {self.line}" if self.line else ""
        number = "" if self.sequence is None else f" (entry {self.sequence})"
        return f"{self.file}{line}{number}: {self.fault.value}: {self.message}"


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A begin without an end: it was going on when the ledger ended, or its end was folded."""

    sequence: int
    kind: str


@dataclass(frozen=True, slots=True)
class Report:
    """The whole outcome of a check.

    `after_signature` entries are vouched for by no signature yet: they hang together, and who
    could write the files could have left out the last of them. `unchecked` signatures could not
    be checked here.
    """

    sandbox: str
    files: int
    entries: int
    last_sequence: int | None
    last_hash: str
    first_ns: int | None
    last_ns: int | None
    signed_through: int | None
    after_signature: int
    verified: int
    unchecked: int
    unsigned: int
    newest: Anchor | None
    unfinished: tuple[Unfinished, ...]
    unfinished_count: int
    lost: int
    folded: int
    recovered: int
    clock_steps_back: int
    is_closed: bool
    is_written: bool
    findings: tuple[Finding, ...]
    findings_count: int

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong with what is there."""
        return self.findings_count == 0

    @property
    def is_signed(self) -> bool:
        """Whether a signature that could be checked vouches for it."""
        return self.signed_through is not None

    def summary(self) -> str:
        """Return one line for a person."""
        if not self.holds:
            count = self.findings_count
            return f"{count} {'thing is' if count == 1 else 'things are'} wrong"
        said = f"{self.entries} entries hang together"
        if self.unchecked:
            return f"{said}; {self.unchecked} signatures could not be checked here"
        if self.signed_through is None:
            return f"{said}; none is signed, so whoever could write them could have written others"
        return (
            f"{said}; signed up to {self.signed_through}, "
            f"{self.after_signature} entries after the last signature"
        )
