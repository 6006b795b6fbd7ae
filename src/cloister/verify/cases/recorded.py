"""A place for the ledgers of a case, and what is asked of them afterwards."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from cloister.ledger import Entry, Folded, Lost
from cloister.ledger.place import ledger_directory, list_files
from cloister.ledger.reading import Report, read_entries, verify_ledger
from cloister.verify.arena import Arena
from cloister.verify.cases.elsewhere import state_in


@contextlib.contextmanager
def ledgers(arena: Arena) -> Iterator[Path]:
    """A state directory for all sandboxes of the case, gone with everything in it."""
    state = arena.canary.directory / "ledgers"
    try:
        with state_in(state):
            yield state
    finally:
        shutil.rmtree(state, ignore_errors=True)


def entries_of(state: Path, sandbox: str) -> list[Entry]:
    """Return all entries of a ledger."""
    return list(read_entries(state, sandbox))


def files_of(state: Path, sandbox: str) -> list[Path]:
    """Return the files of a ledger, in their order."""
    return list_files(ledger_directory(state, sandbox))


def counted_only(found: list[Entry]) -> int:
    """Return how many entries were only counted, or lost and counted."""
    payloads = [entry.payload for entry in found]
    folded = sum(each.count for each in payloads if isinstance(each, Folded))
    return folded + sum(each.count for each in payloads if isinstance(each, Lost))


def expect_holds(arena: Arena, state: Path, sandbox: str) -> Report:
    """Require that nothing is wrong with a ledger, and return what is known of it."""
    report = verify_ledger(state, sandbox)
    wrong = "; ".join(map(str, report.findings))
    arena.expect(report.holds, f"the ledger of {sandbox} does not hold: {wrong}")
    return report
