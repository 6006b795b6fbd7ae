"""Rows of text: a drawn table on a terminal, aligned columns otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import click

from cloister.cli.neutral import neutralise


def print_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    style: Callable[[Sequence[str]], str] = lambda row: "",
) -> None:
    """Print rows; on a terminal each in the style (a word of rich's) it is given."""
    clean = [[neutralise(cell).replace("\n", " ") for cell in row] for row in rows]
    if sys.stdout.isatty():
        # Slow to import, and of no use without a terminal.
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*heads, box=None, pad_edge=False, header_style="bold")
        for row in clean:
            table.add_row(*(Text(cell) for cell in row), style=style(row))
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(heads, *clean, strict=True)]
    for line in ([*heads], *clean):
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
