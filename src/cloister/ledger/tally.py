"""What a walk through a ledger counts on the way: begins without ends, losses, signatures."""

from __future__ import annotations

from cloister.ledger.checkpoint import Anchor, Standing
from cloister.ledger.entry import Entry
from cloister.ledger.findings import Finding, Report, Unfinished
from cloister.ledger.keeping import Checkpoint, Folded, Lost, Recovered

# Kinds that end the span they name; others with a span happen within it.
ENDS = frozenset(
    (
        "sandbox.stopped",
        "sandbox.not_launched",
        "process.ended",
        "egress.closed",
        "egress.response",
        "approval.answered",
    )
)
_MOST_HELD = 100_000
_MOST_LISTED = 100


class Tally:
    """Counts; knows nothing of faults."""

    def __init__(self) -> None:
        self.entries = 0
        self.last: Entry | None = None
        self._first_ns: int | None = None
        self._begun: dict[int, str] = {}
        self._not_held = 0
        self._lost = 0
        self._folded = 0
        self._recovered = 0
        self._clock_steps_back = 0
        self._newest: Anchor | None = None
        self._signed_through: int | None = None
        self._standings = {"verified": 0, "unchecked": 0, "unsigned": 0}

    def add(self, entry: Entry) -> None:
        """Count one entry."""
        self.entries += 1
        if self._first_ns is None:
            self._first_ns = entry.time_ns
        if self.last is not None and entry.time_ns < self.last.time_ns:
            self._clock_steps_back += 1
        self.last = entry
        match entry.payload:
            case Lost(count=count):
                self._lost += count
            case Folded(count=count):
                self._folded += count
            case Recovered():
                self._recovered += 1
        if entry.span is not None:
            self._follow(entry.span, entry)

    def _follow(self, span: int, entry: Entry) -> None:
        if span == entry.sequence:
            if len(self._begun) < _MOST_HELD:
                self._begun[span] = entry.kind
            else:
                self._not_held += 1
        elif entry.kind in ENDS and self._begun.pop(span, None) is None and self._not_held:
            self._not_held -= 1

    def add_checkpoint(self, anchor: Anchor, standing: Standing) -> None:
        """Count a checkpoint that was found to be in order."""
        self._newest = anchor
        self._standings[standing] += 1
        if standing == "verified":
            self._signed_through = anchor.sequence

    def report(
        self,
        *,
        sandbox: str,
        files: int,
        is_written: bool,
        findings: tuple[Finding, ...],
        findings_count: int,
    ) -> Report:
        """Return all of it."""
        last = self.last
        signed = self._signed_through
        # The checkpoint itself stands right after what it signs, and adds nothing.
        after = self.entries if last is None or signed is None else last.sequence - signed - 1
        begun = [Unfinished(number, kind) for number, kind in self._begun.items()]
        payload = None if last is None else last.payload
        return Report(
            sandbox=sandbox,
            files=files,
            entries=self.entries,
            last_sequence=None if last is None else last.sequence,
            last_hash="" if last is None else last.hash,
            first_ns=self._first_ns,
            last_ns=None if last is None else last.time_ns,
            signed_through=signed,
            after_signature=max(0, after),
            verified=self._standings["verified"],
            unchecked=self._standings["unchecked"],
            unsigned=self._standings["unsigned"],
            newest=self._newest,
            unfinished=tuple(begun[:_MOST_LISTED]),
            unfinished_count=len(begun) + self._not_held,
            lost=self._lost,
            folded=self._folded,
            recovered=self._recovered,
            clock_steps_back=self._clock_steps_back,
            is_closed=isinstance(payload, Checkpoint) and payload.final,
            is_written=is_written,
            findings=findings,
            findings_count=findings_count,
        )
