"""Adds up a ledger to what its receipt says, in memory that does not grow with its length."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cloister.errors import HostError
from cloister.ledger import decisions, keeping, lifecycle, receipt, work
from cloister.ledger.entry import Entry
from cloister.ledger.findings import Report
from cloister.ledger.reader import read_entries
from cloister.ledger.text import CutList, Text, list_bytes, listed, readable
from cloister.ledger.traffic import MOST, REST, Traffic, bounded
from cloister.ledger.verify import verify_ledger


def make_receipt(
    state: Path, sandbox: str, *, unseen: Iterable[str] = (), diff: str | None = None
) -> receipt.Receipt:
    """Make the receipt of a sandbox from its ledger, which must hold.

    `unseen` adds to the sentences that were written at the launch; `diff` is the digest of all
    changes together, where the caller has one.
    """
    report = verify_ledger(state, sandbox)
    if not report.holds or report.last_sequence is None:
        raise HostError(
            f"no receipt can be made of a ledger that does not hold: {report.findings[0]}; "
            f"`cloister ledger verify {sandbox}` says all"
        )
    account = Account()
    for entry in read_entries(state, sandbox):
        # What is written meanwhile belongs to a later receipt.
        if entry.sequence > report.last_sequence:
            break
        account.add(entry)
    return account.receipt(report, tuple(unseen), diff)


@dataclass(slots=True)
class _Uses:
    hosts: dict[str, None] = field(default_factory=dict)
    used: int = 0
    blocked: int = 0


class Account:
    """What has been added up so far."""

    def __init__(self) -> None:
        self._planned: lifecycle.Planned | None = None
        self._launched: lifecycle.Launched | None = None
        self._began_ns: int | None = None
        self._ended_ns: int | None = None
        self._ending: Text | None = None
        self._unseen: list[str] = []
        self._snapshots: list[Text] = []
        self._counts: Counter[str] = Counter()
        self._argv = hashlib.sha256()
        self._ran: list[receipt.Ran] = []
        self._running: dict[int, int | None] = {}
        self._steps = hashlib.sha256()
        self._traffic = Traffic()
        self._secrets: dict[str, _Uses] = {}
        self._asked: dict[int, decisions.ApprovalAsked] = {}
        self._approvals: list[receipt.Approval] = []
        self._denials: Counter[tuple[str, str]] = Counter()
        self._limits: Counter[str] = Counter()
        self._key: str | None = None

    def add(self, entry: Entry) -> None:
        """Add one entry."""
        payload = entry.payload
        match payload:
            case lifecycle.Planned():
                self._planned = payload
                self._began_ns = self._began_ns or entry.time_ns
            case lifecycle.Launched():
                self._launched = payload
                self._unseen += [s for s in listed(payload.unseen) if s not in self._unseen]
            case lifecycle.Stopped() | lifecycle.NotLaunched():
                self._ended_ns, self._ending = entry.time_ns, payload.reason
            case lifecycle.SnapshotTaken() if len(self._snapshots) < MOST:
                self._snapshots.append(payload.snapshot)
            case lifecycle.LimitHit():
                self._limits[bounded(self._limits, readable(payload.limit))] += payload.count
            case work.ProcessStarted():
                self._add_process(entry, payload)
            case work.ProcessEnded():
                self._end_process(entry, payload)
            case work.FilesChanged():
                self._add_changes(payload)
            case keeping.Opened() | keeping.Recovered():
                self._key = None if payload.key is None else readable(payload.key)
            case keeping.Folded():
                self._add_folded(payload)
            case _:
                self._add_crossing(entry)

    def _add_process(self, entry: Entry, payload: work.ProcessStarted) -> None:
        self._counts["started"] += 1
        self._counts["by_api"] += payload.by == "api"
        self._counts["guest_word"] += payload.source == "guest"
        argv = payload.argv
        digest = argv.sha256 if isinstance(argv, CutList) else _digest(argv)
        self._argv.update(bytes.fromhex(digest))
        index = None
        if len(self._ran) < MOST:
            index = len(self._ran)
            self._ran.append(receipt.Ran(digest, payload.by))
        if entry.span is not None and index is not None:
            self._running[entry.span] = index

    def _end_process(self, entry: Entry, payload: work.ProcessEnded) -> None:
        self._counts["ended"] += 1
        self._counts["failed"] += payload.exit_code != 0
        index = None if entry.span is None else self._running.pop(entry.span, None)
        if index is not None:
            ran = self._ran[index]
            self._ran[index] = receipt.Ran(
                ran.argv_sha256, ran.by, payload.exit_code, payload.signal
            )

    def _add_changes(self, payload: work.FilesChanged) -> None:
        if payload.unseen is not None:
            said = f"what step {payload.step} changed: {readable(payload.unseen)}"
            if len(self._unseen) < MOST:
                self._unseen.append(said)
            return
        for name in ("added", "modified", "removed", "content_bytes"):
            self._counts[name] += getattr(payload, name)
        self._counts["steps"] += 1
        self._steps.update(list_bytes((payload.digest,)))

    def _add_folded(self, payload: keeping.Folded) -> None:
        of, about = readable(payload.of), readable(payload.about)
        if payload.refusals:
            rule = about.partition(" ")[2] or about
            self._denials[_bounded_pair(self._denials, (of, rule))] += payload.refusals
        if of == work.ProcessStarted.kind:
            self._counts["started"] += payload.count
        if of == work.ProcessEnded.kind:
            self._counts["ended"] += payload.count
        self._traffic.add_folded(payload)

    def _add_crossing(self, entry: Entry) -> None:
        payload = entry.payload
        self._traffic.add(entry)
        if payload.is_refusal and not isinstance(payload, decisions.ApprovalAnswered):
            rule = readable(getattr(payload, "rule", getattr(payload, "name", "")))
            self._denials[_bounded_pair(self._denials, (entry.kind, rule))] += 1
        match payload:
            case decisions.SecretUsed() | decisions.SecretBlocked():
                name = bounded(self._secrets, readable(payload.name))
                uses = self._secrets.setdefault(name, _Uses())
                uses.used += isinstance(payload, decisions.SecretUsed)
                uses.blocked += isinstance(payload, decisions.SecretBlocked)
                if len(uses.hosts) < MOST and isinstance(payload, decisions.SecretUsed):
                    uses.hosts[readable(payload.host)] = None
            case decisions.ApprovalAsked() if len(self._asked) < MOST:
                self._asked[payload.number] = payload
            case decisions.ApprovalAnswered():
                asked = self._asked.pop(payload.number, None)
                if asked is not None and len(self._approvals) < MOST:
                    self._approvals.append(_approval(asked, payload.answer, payload.who))

    def receipt(self, report: Report, unseen: tuple[str, ...], diff: str | None) -> receipt.Receipt:
        """Return the receipt of all that was added."""
        planned, launched, counts = self._planned, self._launched, self._counts
        named = launched or planned
        pending = [_approval(asked, "none yet", None) for asked in self._asked.values()]
        return receipt.Receipt(
            format=receipt.FORMAT,
            sandbox=report.sandbox,
            label=None if planned is None else planned.label,
            runtime=None if planned is None else planned.runtime,
            base_snapshot=None if planned is None else planned.snapshot,
            plan=None if named is None else named.plan,
            policy=None if named is None else named.policy,
            image=None if named is None else named.image,
            began_ns=self._began_ns,
            ended_ns=self._ended_ns,
            ending=self._ending,
            snapshots=tuple(self._snapshots),
            ledger=receipt.LedgerFacts(
                entries=report.entries,
                last_sequence=report.last_sequence or 0,
                last_hash=report.last_hash,
                lost=report.lost,
                folded=report.folded,
                recovered=report.recovered,
                unfinished=report.unfinished_count,
                signed_through=report.signed_through,
                key=self._key,
            ),
            processes=receipt.Processes(
                started=counts["started"],
                ended=counts["ended"],
                by_api=counts["by_api"],
                failed=counts["failed"],
                guest_word=counts["guest_word"],
                argv_sha256=self._argv.hexdigest(),
                first=tuple(self._ran),
            ),
            changes=receipt.Changes(
                steps=counts["steps"],
                added=counts["added"],
                modified=counts["modified"],
                removed=counts["removed"],
                content_bytes=counts["content_bytes"],
                steps_sha256=self._steps.hexdigest(),
                diff=diff,
            ),
            hosts=self._traffic.hosts(),
            secrets=tuple(
                receipt.SecretUse(name, tuple(uses.hosts), uses.used, uses.blocked)
                for name, uses in sorted(self._secrets.items())
            ),
            approvals=(*self._approvals, *pending),
            denials=tuple(
                receipt.Denial(kind, rule, count)
                for (kind, rule), count in sorted(self._denials.items())
            ),
            limits=tuple(
                receipt.LimitCount(limit, count) for limit, count in sorted(self._limits.items())
            ),
            coverage=(*self._unseen, *unseen, *self._uncovered(report)),
        )

    def _uncovered(self, report: Report) -> list[str]:
        """Return what the ledger itself shows that it does not show."""
        said = {
            "entries could not be written, and what they would have said is not here": report.lost,
            "entries came in floods and were counted, not kept one by one": report.folded,
            "times a writer ended without closing; what it had not written yet is not here": (
                report.recovered
            ),
            "things had begun and their end is not here": report.unfinished_count,
            "processes are known by the guest's word only": self._counts["guest_word"],
            "hosts were spoken to in TLS that was passed through unread": len(self._traffic.unread),
        }
        sentences = [f"{count} {what}" for what, count in said.items() if count]
        if report.signed_through is None:
            sentences.append("no signature vouches for the ledger this was made from")
        return sentences


def _approval(asked: decisions.ApprovalAsked, answer: str, who: Text | None) -> receipt.Approval:
    return receipt.Approval(asked.number, asked.what, asked.rule, answer, who)


def _digest(argv: tuple[Text, ...]) -> str:
    return hashlib.sha256(list_bytes(argv)).hexdigest()


def _bounded_pair(known: Counter[tuple[str, str]], name: tuple[str, str]) -> tuple[str, str]:
    return name if name in known or len(known) < MOST else (name[0], REST)
