"""Show the rows as a table and keep them as JSON."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benches.row import Bar, Row

SIGNS = {
    Bar.RATIO_AT_MOST: "≤ {} x",
    Bar.RATIO_AT_LEAST: "≥ {} x",
    Bar.OURS_AT_MOST: "≤ {}",
    Bar.OURS_AT_LEAST: "≥ {}",
    Bar.NONE: "",
}


def show(console: Console, rows: Sequence[Row]) -> None:
    table = Table(caption="medians of interleaved turns; ± is half the distance of the quartiles")
    table.add_column("what", ratio=1)
    for heading in ("ours", "peer", "ratio", "bar"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("holds", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row.name}, {row.unit}" if row.unit else row.name,
            figure(row, "ours", row.ours),
            f"{row.peer_name or ''} {figure(row, row.peer_name, row.peer)}".strip(),
            "" if row.ratio is None else f"{row.ratio:.2f}",
            "" if row.bar is None else SIGNS[row.kind].format(short(row.bar)),
            verdict(row),
        )
    console.print(table)
    for row in rows:
        for line in remarks(row):
            console.print(f"  [bold]{row.name}[/bold]: {line}", highlight=False, soft_wrap=True)


def figure(row: Row, name: str | None, median: float | None) -> str:
    if median is None:
        return ""
    summary = row.spread.get(name or "")
    if summary is None:
        return short(median)
    half = (summary.quartile_high - summary.quartile_low) / 2
    return f"{short(median)} [dim]±{half / median:.0%}[/dim]"


def short(value: float) -> str:
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def verdict(row: Row) -> str:
    if row.failed:
        return "[red]FAILED[/red]"
    if row.holds is None:
        return "[yellow]not measured[/yellow]" if row.why else "[dim]shown[/dim]"
    return "[green]holds[/green]" if row.holds else "[red]MISSED[/red]"


def remarks(row: Row) -> list[str]:
    lines = [row.why] if row.why else []
    others = [
        f"{name} {short(summary.median)}"
        for name, summary in sorted(row.spread.items(), key=lambda pair: pair[1].median)
        if name not in ("ours", row.peer_name)
    ]
    if others:
        lines.append(f"others, in {row.unit}: " + ", ".join(others))
    lines += [f"{name} is absent: {why}" for name, why in row.absent.items()]
    lines += [f"{name} {value}" for name, value in row.facts.items()]
    return lines


def write(path: Path, rows: Sequence[Row]) -> None:
    text = json.dumps(machine() | {"results": [row.as_dict() for row in rows]}, indent=2)
    path.write_text(text + "\n")


def machine() -> dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "cpu_model": cpu_model(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "user": "root" if os.getuid() == 0 else "ordinary",
    }


def cpu_model() -> str | None:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return None
