"""What of a server's sandboxes waits for a person, and that person's answer."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from cloister.cli.served.place import client
from cloister.errors import NotFound
from cloister.model import format_duration, parse_duration
from cloister.model.approvals import escape


async def approvals(as_json: bool) -> int:
    """List what waits for an answer, the oldest first."""
    found = await _waiting()
    if as_json:
        click.echo(json.dumps(found))
        return 0
    for each in found:
        left_s = max(0, round(each["expires_at"] - time.time()))
        click.echo(f"{each['number']}  {escape(each['sandbox'])}  {format_duration(left_s)} left")
        for line in each["lines"]:
            click.echo(f"    {escape(line)}")
    if not found:
        click.echo("nothing waits for an answer")
    return 0


async def approve(number: int, for_time: str | None, sandbox: bool, reason: str | None) -> int:
    """Let a question through."""
    if for_time is not None and sandbox:
        raise click.UsageError("--for and --sandbox are two answers; give one")
    if for_time is not None:
        parse_duration(for_time, "--for")
    how = "for_time" if for_time is not None else "for_sandbox" if sandbox else "once"
    return await _answer(number, how, for_time, reason)


async def deny(number: int, reason: str | None) -> int:
    """Deny a question."""
    return await _answer(number, "deny", None, reason)


async def _answer(number: int, how: str, for_time: str | None, reason: str | None) -> int:
    for each in await _waiting():
        if each["number"] == number:
            body = {"digest": each["digest"], "answer": how, "reason": reason or ""}
            if for_time is not None:
                body["for"] = for_time
            await client().ask("POST", f"/v1/approvals/{number}", body)
            said = "denied" if how == "deny" else "allowed"
            click.echo(f"{said}: {escape(each['summary'])}")
            return 0
    raise NotFound(
        f"no question {number} waits; `cloister approvals` lists those that do", what=str(number)
    )


async def _waiting() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client().ask("GET", "/v1/approvals"))["approvals"]
    return found
