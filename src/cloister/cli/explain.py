"""`cloister explain`: what a policy answers to a request, and the rule that gave the answer."""

from __future__ import annotations

import json
from pathlib import Path

import click

from cloister.model.approvals import escape
from cloister.policy import Effect, load_policy
from cloister.policy.explain import Explained, parse_wish
from cloister.policy.explain import explain as explain_wish

_STYLES = {Effect.ALLOW: "green", Effect.DENY: "red", Effect.ASK: "yellow"}


@click.command()
@click.option(
    "--policy",
    "file",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path),
    help="The policy.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as one JSON object.")
@click.argument("words", metavar="[METHOD] URL", nargs=-1, required=True)
def explain(file: Path, as_json: bool, words: tuple[str, ...]) -> int:
    """Say what a policy answers to a request, by which rule, and what to add to allow it.

    METHOD is one of HTTP, and GET if it is left out; or CONNECT with host:port, for a connection;
    or RESOLVE with a name.
    Nothing is sent anywhere. Exits with 0 if it is allowed, and with 1 if it is denied or a
    person would be asked.

    For example: `cloister explain --policy cloister.toml GET https://api.example.org/v1/x`
    """
    if len(words) > 2:
        raise click.UsageError(f"{len(words)} words; give a method and an address")
    method, target = words if len(words) == 2 else ("GET", words[0])
    policy = load_policy(file)
    found = explain_wish(parse_wish(method, target), policy)
    if as_json:
        click.echo(json.dumps(_table(found)))
    else:
        _tell(found)
    return 0 if found.verdict.effect is Effect.ALLOW else 1


def _table(found: Explained) -> dict[str, object]:
    return {
        "effect": found.verdict.effect.value,
        "rule": found.verdict.rule,
        "reason": found.verdict.reason,
        "asked": found.asked,
        "path": found.path,
        "requests_are_read": found.is_read,
        "secrets": list(found.secrets),
        "advice": found.advice,
    }


def _tell(found: Explained) -> None:
    verdict = found.verdict
    word = click.style(verdict.effect.value, fg=_STYLES[verdict.effect], bold=True)
    click.echo(f"{word}: {escape(found.asked)}")
    click.echo(f"rule: {escape(verdict.rule)}")
    click.echo(f"reason: {escape(verdict.reason)}")
    if found.path is not None:
        click.echo(f"path as judged: {escape(found.path)}")
    if found.is_read:
        click.echo("requests to this host are read")
    for name in found.secrets:
        click.echo(f"secret: {name} may be sent there")
    if found.advice:
        click.echo(f"to allow it:\n{found.advice}" if "\n" in found.advice else found.advice)
