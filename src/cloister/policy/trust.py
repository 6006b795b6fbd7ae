"""Choose the cheapest wall that is strong enough, and never a weaker one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cloister.errors import Unsupported
from cloister.model import Trust

# The least trusted code each runtime's wall is made for.
STRENGTHS: Mapping[str, Trust] = {
    "namespace": Trust.INTERNAL,
    "gvisor": Trust.UNTRUSTED,
    "microvm": Trust.HOSTILE,
}


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """What is known of one runtime on this host; `cost` only orders, lower is cheaper."""

    name: str
    strength: Trust
    cost: int
    available: bool
    why_not: str | None = None


def choose_runtime(trust: Trust, available: Sequence[RuntimeFacts]) -> str:
    """Return the name of the cheapest runtime whose wall is enough for that trust."""
    fit = [facts for facts in available if facts.available and facts.strength.covers(trust)]
    if fit:
        return min(fit, key=lambda facts: (facts.cost, facts.name)).name
    refusals = "; ".join(f"{facts.name}: {_refusal(trust, facts)}" for facts in available)
    raise Unsupported(
        f'no runtime here is strong enough for trust = "{trust.value}" '
        f"({refusals or 'there is no runtime at all'}); "
        "make one of them available or state more trust"
    )


def _refusal(trust: Trust, facts: RuntimeFacts) -> str:
    if not facts.strength.covers(trust):
        return f'its wall is for trust = "{facts.strength.value}" only'
    return facts.why_not or "not available"
