"""What of a kept sandbox waits for a person before it is put on the host."""

from __future__ import annotations

from typing import Any, Literal

from cloister.cli.telling import note
from cloister.policy import Effect, Policy
from cloister.sandbox import gates
from cloister.sandbox.gates import Ask
from cloister.store.changes import Plan


async def pass_gate(
    gate: Literal["apply", "export"], policy: Policy, ask: Ask, **asked: Any
) -> None:
    """As `pass_gate` of a sandbox; whoever waits at a terminal is told for what."""
    if getattr(policy.gates, gate) is Effect.ASK:
        note("waiting for an answer; `cloister approvals` shows the question")
    await gates.pass_gate(gate, policy, ask, **asked)


def plan_digest(plan: Plan) -> str:
    """Return the SHA-256 of everything that a plan would do."""
    return gates.steps_digest(str(plan.directory), plan.steps)


def plan_details(plan: Plan) -> list[tuple[str, str]]:
    """Return what a person is shown of a plan."""
    return gates.steps_details(plan.steps)
