"""`cloister ps`: the living sandboxes of this user, whichever process started them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from cloister.cli.table import print_table
from cloister.cli.telling import short_bytes
from cloister.node import Record, list_records

# The same number under the names of both versions of control groups.
_MEMORY = ("memory.current", "memory.usage_in_bytes")
_PIDS = ("pids.current",)


@dataclass(frozen=True, slots=True)
class Counted:
    """What the kernel counts for a sandbox now; None where it does not."""

    memory_bytes: int | None
    processes: int | None
    cpu_s: float | None


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object a sandbox.")
def ps(as_json: bool) -> None:
    """List the living sandboxes of this user, of all processes."""
    found = [(record, count(record)) for record in list_records()]
    if as_json:
        rows = [{**asdict(record), **asdict(counted)} for record, counted in found]
        click.echo(json.dumps(rows))
        return
    heads = ("id", "label", "age", "processes", "memory", "cpu", "profile", "trust", "owner")
    print_table(heads, [_row(record, counted) for record, counted in found])


def count(record: Record) -> Counted:
    """Return what a sandbox of any process consumes, from the groups its record names."""
    groups = [Path(group) for group in record.groups]
    memory = _first_number(groups, _MEMORY)
    processes = _first_number(groups, _PIDS)
    # The guest itself is a process too, and not one of the caller's.
    return Counted(memory, None if processes is None else max(0, processes - 1), _cpu_s(groups))


def _first_number(groups: list[Path], files: tuple[str, ...]) -> int | None:
    for group in groups:
        for file in files:
            text = _read(group / file)
            if text.isdecimal():
                return int(text)
    return None


def _cpu_s(groups: list[Path]) -> float | None:
    for group in groups:
        for line in _read(group / "cpu.stat").splitlines():
            name, _, value = line.partition(" ")
            if name == "usage_usec" and value.isdecimal():
                return int(value) / 1e6
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        # No such file in this version of control groups, or the sandbox ended while we looked.
        return ""


def _row(record: Record, counted: Counted) -> list[str]:
    return [
        record.id,
        record.label or "-",
        short_age(record.age_s),
        "-" if counted.processes is None else f"{counted.processes}",
        "-" if counted.memory_bytes is None else short_bytes(counted.memory_bytes),
        "-" if counted.cpu_s is None else f"{counted.cpu_s:.2f} s",
        record.profile,
        record.trust,
        f"{record.owner_pid}",
    ]


def short_age(seconds: float) -> str:
    """Return an age in the two largest units that say something."""
    whole = int(seconds)
    for size, unit, lesser, small in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // lesser}{small}"
    return f"{whole}s"
