"""What of a kept sandbox waits for a person before it is put on the host."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from cloister.cli.telling import note
from cloister.policy import Effect, Policy
from cloister.sandbox import gates
from cloister.sandbox.gates import Ask
from cloister.store.changes import Plan
from cloister.store.changes.obeyed import is_obeyed_by_tools

_SHOWN = 15


async def pass_gate(
    gate: Literal["apply", "export"], policy: Policy, ask: Ask, **asked: Any
) -> None:
    """As `pass_gate` of a sandbox; whoever waits at a terminal is told for what."""
    if getattr(policy.gates, gate) is Effect.ASK:
        note("waiting for an answer; `cloister approvals` shows the question")
    await gates.pass_gate(gate, policy, ask, **asked)


def plan_digest(plan: Plan) -> str:
    """Return the SHA-256 of everything that a plan would do."""
    steps = [
        [
            step.path.hex(),
            None if step.before is None else step.before.to_json(),
            None if step.after is None else step.after.to_json(),
        ]
        for step in plan.steps
    ]
    whole = json.dumps([str(plan.directory), steps], sort_keys=True)
    return hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()


def plan_details(plan: Plan) -> list[tuple[str, str]]:
    """Return what a person is shown of a plan: how many steps, and the first of them.

    Before all others come those that programs of the host obey by themselves.
    """
    obeyed = [each for each in plan.steps if each.after and is_obeyed_by_tools(each.path)]
    others = [each for each in plan.steps if not (each.after and is_obeyed_by_tools(each.path))]
    counts = [("steps", str(len(plan.steps)))]
    if obeyed:
        counts.append(("obeyed by programs of the host", str(len(obeyed))))
    return [
        *counts,
        *(("obeyed step", step.display()) for step in obeyed[:_SHOWN]),
        *(("step", step.display()) for step in others[:_SHOWN]),
    ]
