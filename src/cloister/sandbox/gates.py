"""What of a sandbox waits for a person, or is denied, before it leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from cloister.errors import Denied
from cloister.model.approvals import Answer, Question
from cloister.policy import Effect, Policy, Verdict

Ask = Callable[[Question], Awaitable[Answer]]


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
