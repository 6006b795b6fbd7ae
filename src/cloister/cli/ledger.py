"""`cloister ledger`: the record of a sandbox shown, followed, verified and exported."""

from __future__ import annotations

import collections
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloister.cli.neutral import neutralise
from cloister.errors import HostError, RequestError
from cloister.model import quote

if TYPE_CHECKING:
    from cloister.ledger import Entry
    from cloister.ledger.reading import PublicKey, Report

_MOST_SHOWN = 20


@click.group()
def ledger() -> None:
    """Show, follow, verify and export what was recorded of sandboxes.

    ID is a sandbox's id, the beginning of one, or a label.
    """


def state() -> Path:
    """Return the state directory of this person."""
    from cloister.store.place import state_directory

    return state_directory()


@ledger.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of names.")
def list_command(as_json: bool) -> None:
    """List the ledgers, the one written last at the end."""
    from cloister.ledger.reading import list_ledgers

    names = list_ledgers(state())
    emit([json.dumps(names)] if as_json else names)


@ledger.command()
@click.argument("id")
@click.option("--kind", metavar="KIND", multiple=True, help="Only this kind. Repeatable.")
@click.option("--after", metavar="NUMBER", type=int, default=-1, help="Only entries after this.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object an entry.")
def show(id: str, kind: tuple[str, ...], after: int, as_json: bool) -> None:
    """Print the entries of a sandbox, one a line."""
    from cloister.ledger.reading import find_ledger, read_entries

    wanted = known_kinds(kind)
    place = state()
    entries = read_entries(place, find_ledger(place, id), after=after)
    emit(_line(entry, as_json) for entry in entries if not wanted or entry.kind in wanted)


def known_kinds(kinds: tuple[str, ...]) -> frozenset[str]:
    """Return the kinds of entries that are asked for."""
    # A misspelt kind must not look like nothing having happened.
    from cloister.ledger import KINDS

    for kind in kinds:
        if kind not in KINDS:
            raise RequestError(f"no kind {quote(kind)}; the kinds are {', '.join(sorted(KINDS))}")
    return frozenset(kinds)


@ledger.command()
@click.argument("id")
@click.option("--lines", metavar="COUNT", type=click.IntRange(0), default=10, help="How many.")
@click.option("--follow", is_flag=True, help="Go on with what is written from now on.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object an entry.")
def tail(id: str, lines: int, follow: bool, as_json: bool) -> None:
    """Print the last entries of a sandbox, and with --follow the new ones as they come."""
    from cloister.ledger.reading import find_ledger, follow_entries, read_entries

    place = state()
    name = find_ledger(place, id)
    last: collections.deque[Entry] = collections.deque(maxlen=max(1, lines))
    last.extend(read_entries(place, name))
    emit(_line(entry, as_json) for entry in list(last)[len(last) - min(lines, len(last)) :])
    if follow:
        after = last[-1].sequence if last else -1
        new = follow_entries(place, name, after=after)
        emit((_line(entry, as_json) for entry in new), at_once=True)


@ledger.command()
@click.argument("id")
@click.option(
    "--against",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A checkpoint kept earlier; what was cut off since is found.",
)
@click.option(
    "--keep",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the newest checkpoint there, to be kept elsewhere.",
)
@click.option(
    "--key",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Believe this public key and not the ones of this machine. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as one object.")
def verify(
    id: str, against: Path | None, keep: Path | None, key: tuple[Path, ...], as_json: bool
) -> int:
    """Check that nothing in a ledger was edited, removed, moved or slipped in.

    Exits with 1 if something was, or if its signatures cannot be checked here.
    """
    from cloister.ledger.reading import find_ledger, read_anchors, verify_ledger

    place = state()
    kept = () if against is None else tuple(read_anchors(existing(against)))
    report = verify_ledger(place, find_ledger(place, id), keys=read_keys(key), against=kept)
    return conclude(report, keep, as_json)


def conclude(report: Report, keep: Path | None, as_json: bool) -> int:
    """Say what a check found, keep its newest checkpoint, and return the exit code."""
    if keep is not None:
        if report.newest is None or not report.holds:
            raise HostError("there is no checkpoint to keep: the ledger has none, or is not whole")
        keep.write_bytes(report.newest.encode() + b"\n")
    emit([json.dumps({"holds": report.holds, **asdict(report)})] if as_json else _told(report))
    return 0 if report.holds and not report.unchecked else 1


def read_keys(paths: Iterable[Path]) -> dict[str, PublicKey] | None:
    """Return the public keys of files by id, or None where no file is named."""
    from cloister.ledger.reading import read_public_key

    keys = {key.id: key for key in (read_public_key(existing(path)) for path in paths)}
    return keys or None


def existing(path: Path) -> Path:
    """Return the path of a file, which must be there."""
    if not path.is_file():
        raise RequestError(f"no file {quote(str(path))}; write the path of one")
    return path


def _told(report: Report) -> Iterator[str]:
    yield f"{report.sandbox}: {report.summary()}"
    for finding in report.findings:
        yield f"  {finding}"
    if report.findings_count > len(report.findings):
        yield f"  and {report.findings_count - len(report.findings)} more"
    if report.is_written:
        yield "  it is being written now"
    elif not report.is_closed:
        yield "  it was not closed: its writer died, or entries after the last are missing"
    for count, what in (
        (report.lost, "entries could not be written"),
        (report.folded, "entries were counted in floods and not kept"),
        (report.recovered, "times a writer had ended without closing"),
        (report.clock_steps_back, "times the clock was set back"),
        (report.unfinished_count, "things began and did not end:"),
    ):
        if count:
            yield f"  {count} {what}"
    for begun in report.unfinished[:_MOST_SHOWN]:
        yield f"    {begun.sequence} {begun.kind}"


@ledger.command()
@click.argument("id")
@click.option(
    "--as",
    "form",
    metavar="FORM",
    default="jsonl",
    help="jsonl (the ledger byte for byte), ocsf or otlp (OpenTelemetry).",
)
def export(id: str, form: str) -> None:
    """Write a ledger to standard output in a form that other systems read."""
    from cloister.ledger.reading import export_ledger, find_ledger

    place = state()
    lines = export_ledger(place, find_ledger(place, id), form)
    emit(line.decode("ascii", "backslashreplace").rstrip("\n") for line in lines)


def _line(entry: Entry, as_json: bool) -> str:
    from cloister.ledger import Unknown, encode_fields
    from cloister.ledger.reading import clock, describe

    if not as_json:
        return neutralise(
            f"{entry.sequence:>6}  {clock(entry.time_ns)}  {entry.kind:<20}  {describe(entry)}"
        ).rstrip()
    payload = entry.payload
    fields = payload.fields if isinstance(payload, Unknown) else encode_fields(payload)
    shown = {
        "sequence": entry.sequence,
        "time": clock(entry.time_ns),
        "time_ns": entry.time_ns,
        "monotonic_ns": entry.monotonic_ns,
        "sandbox": entry.sandbox,
        "kind": entry.kind,
        "span": entry.span,
        "trace": None if entry.trace is None else str(entry.trace),
        "payload": fields,
        "hash": entry.hash,
    }
    return json.dumps(shown)


def emit(lines: Iterable[str], *, at_once: bool = False) -> None:
    """Print lines, `at_once` each when it comes; a reader that has gone is no error."""
    try:
        for line in lines:
            sys.stdout.write(line + "\n")
            if at_once:
                sys.stdout.flush()
        sys.stdout.flush()
    except BrokenPipeError:
        # What Python would still write at its end goes nowhere, instead of failing again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
