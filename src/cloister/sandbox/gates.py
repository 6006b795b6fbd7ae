"""What of a sandbox waits for a person, or is denied, before it leaves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from cloister.errors import Denied
from cloister.model.approvals import Answer, Question
from cloister.policy import Effect, Policy, Verdict
from cloister.store.changes import Step
from cloister.store.changes.obeyed import is_obeyed_by_tools

Ask = Callable[[Question], Awaitable[Answer]]

_SHOWN = 15


async def pass_gate(
    gate: Literal["apply", "export"],
    policy: Policy,
    ask: Ask,
    *,
    subject: str,
    content: str,
    details: Sequence[tuple[str, str]],
) -> None:
    """Return once it may be done, or raise Denied; `content` is the digest of all of it."""
    effect: Effect = getattr(policy.gates, gate)
    if effect is Effect.ALLOW:
        return
    rule = f"gates.{gate}"
    if effect is Effect.ASK:
        question = Question(gate, rule, subject=subject, content=content, details=tuple(details))
        answer = await ask(question)
        if answer.allowed:
            return
        reason = f"asked and not allowed: {answer.why_not}"
    else:
        reason = f'the policy has {rule} = "deny"'
    verdict = Verdict(Effect.DENY, rule, reason)
    raise Denied(f"{gate} is denied: {reason}", verdict=verdict)


def steps_digest(directory: str, steps: Sequence[Step]) -> str:
    """Return the SHA-256 of everything that an apply would do."""
    marks = [
        [
            step.path.hex(),
            None if step.before is None else step.before.to_json(),
            None if step.after is None else step.after.to_json(),
        ]
        for step in steps
    ]
    whole = json.dumps([directory, marks], sort_keys=True)
    return hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()


def steps_details(steps: Sequence[Step]) -> list[tuple[str, str]]:
    """Return what a person is shown of an apply: how many steps, and the first of them.

    Before all others come those that programs of the host obey by themselves.
    """
    obeyed = [each for each in steps if each.after and is_obeyed_by_tools(each.path)]
    others = [each for each in steps if not (each.after and is_obeyed_by_tools(each.path))]
    counts = [("steps", str(len(steps)))]
    if obeyed:
        counts.append(("obeyed by programs of the host", str(len(obeyed))))
    return [
        *counts,
        *(("obeyed step", step.display()) for step in obeyed[:_SHOWN]),
        *(("step", step.display()) for step in others[:_SHOWN]),
    ]
