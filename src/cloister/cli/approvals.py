"""`cloister approvals`, `approve` and `deny`: what waits for a person, and that person's answer."""

from __future__ import annotations

import json
import time

import click

from cloister.model import format_duration, parse_duration
from cloister.model.approvals import How, escape
from cloister.node import list_records
from cloister.node.approval_client import Listed, answer_question, list_questions


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the questions as one JSON array.")
def approvals(as_json: bool) -> int:
    """List what waits for an answer, of all sandboxes of this user, the oldest first.

    What is shown of a request is escaped: nothing in it can look like words of cloister's. An
    answer is to exactly what the digest is of.
    """
    found = list_questions()
    labels = _labels() if found else {}
    if as_json:
        click.echo(json.dumps([_table(each, labels.get(each.sandbox)) for each in found]))
        return 0
    for each in found:
        for line in _shown(each, labels.get(each.sandbox) or each.sandbox):
            click.echo(line)
    if not found:
        click.echo("nothing waits for an answer")
    return 0


@click.command()
@click.option("--for", "for_time", metavar="TIME", help="Also the same for so long, such as 10m.")
@click.option("--sandbox", is_flag=True, help="Also the same for as long as this sandbox lives.")
@click.option("--reason", metavar="TEXT", help="Why, for the ledger.")
@click.argument("number", type=click.IntRange(min=1))
def approve(number: int, for_time: str | None, sandbox: bool, reason: str | None) -> int:
    """Let question NUMBER of `cloister approvals` through: that one, once, unless said otherwise.

    "The same" is the same host, method and path, of the same sandbox, and nothing wider.

    For example: `cloister approve 7 --for 10m`
    """
    if for_time is not None and sandbox:
        raise click.UsageError("--for and --sandbox are two answers; give one")
    how: How = "once"
    if for_time is not None:
        parse_duration(for_time, "--for")
        how = "for_time"
    elif sandbox:
        how = "for_sandbox"
    listed = answer_question(number, how, for_time=for_time, reason=reason)
    click.echo(f"allowed: {listed.summary}")
    return 0


@click.command()
@click.option("--reason", metavar="TEXT", help="Why, for the ledger and the program that asked.")
@click.argument("number", type=click.IntRange(min=1))
def deny(number: int, reason: str | None) -> int:
    """Deny question NUMBER of `cloister approvals`."""
    listed = answer_question(number, "deny", reason=reason)
    click.echo(f"denied: {listed.summary}")
    return 0


def _labels() -> dict[str, str | None]:
    """What people call the sandboxes that live."""
    return {record.id: record.label for record in list_records()}


def _shown(listed: Listed, name: str) -> list[str]:
    left_s = max(0, round(listed.expires_at - time.time()))
    head = f"{listed.number}  {escape(name)}  {format_duration(left_s)} left"
    after = [f"snapshot: {escape(listed.snapshot)}"] if listed.snapshot else []
    return [head, *(f"    {line}" for line in (*listed.lines, *after))]


def _table(listed: Listed, label: str | None) -> dict[str, object]:
    return {
        "number": listed.number,
        "sandbox": listed.sandbox,
        "label": label,
        "expires_at": listed.expires_at,
        "snapshot": listed.snapshot,
        "digest": listed.digest,
        **listed.question,
    }
