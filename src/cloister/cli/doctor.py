"""`cloister doctor`: what this host can enforce, what it cannot, and how to fix it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from cloister.cli import session
from cloister.cli.progress import Waiting
from cloister.cli.table import print_table

_STYLES = {"ok": "green", "missing": "red", "advice": "yellow"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def doctor(as_json: bool) -> int:
    """Say what this host can enforce, what it cannot, and how to fix it.

    Everything is tried, not guessed: real sandboxes are started and looked at. Lines marked
    advice make a host harder to attack; a sandbox holds without them. Exits with 0 if a sandbox
    starts here with its default limits, otherwise with 1.
    """
    return session.run_until_signal(lambda: _examine(as_json))


async def _examine(as_json: bool) -> int:
    from cloister.doctor import State, examine

    with Waiting("starting sandboxes, to see what holds here"):
        report = await examine()
    if as_json:
        findings = [asdict(finding) for finding in report.findings]
        click.echo(json.dumps({"can_start": report.can_start, "findings": findings}))
    else:
        rows = [[f.state.value, f.name, f.detail] for f in report.findings]
        print_table(("state", "what", "found"), rows, style=_style)
        for finding in report.findings:
            if finding.fix is not None:
                click.echo(f"{finding.state.value}: {finding.name}: {finding.fix}")
        click.echo(
            f"{report.count(State.OK)} ok, {report.count(State.MISSING)} missing, "
            f"{report.count(State.ADVICE)} advice; a sandbox with default limits "
            + ("starts here" if report.can_start else "does NOT start here")
        )
    return 0 if report.can_start else 1


def _style(row: Sequence[str]) -> str:
    return _STYLES.get(row[0], "")
