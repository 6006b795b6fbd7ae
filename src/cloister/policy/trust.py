"""Choose the cheapest wall that is strong enough, and never a weaker one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cloister.errors import RequestError, Unsupported
from cloister.model import Trust, quote

# The least trusted code each runtime's wall is made for.
STRENGTHS: Mapping[str, Trust] = {
    "namespace": Trust.INTERNAL,
    "gvisor": Trust.UNTRUSTED,
    "microvm": Trust.HOSTILE,
    "wasm": Trust.UNTRUSTED,
}
# Says which runtime a level of trust gets on this host, where the cheapest is not what is wanted.
TABLE_VARIABLE = "CLOISTER_RUNTIMES"
_EXAMPLE = "internal=gvisor,untrusted=microvm"


class RuntimeName(StrEnum):
    """The ways to build the wall, by name."""

    NAMESPACE = "namespace"
    GVISOR = "gvisor"
    MICROVM = "microvm"
    WASM = "wasm"


class Requirement(StrEnum):
    """What the wall must be, whatever the trust: `own-kernel` is not the host's kernel."""

    OWN_KERNEL = "own-kernel"


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """What is known of one runtime on this host; `cost` only orders, lower is cheaper.

    `own_kernel` says whether system calls are answered by a kernel other than the host's; one that
    is not `general` is for some programs only and is never chosen unless it is named.
    """

    name: str
    strength: Trust
    cost: int
    available: bool
    why_not: str | None = None
    own_kernel: bool = False
    general: bool = True


@dataclass(frozen=True, slots=True)
class WallWanted:
    """What a policy says of its wall."""

    trust: Trust
    runtime: str | None = None
    require: Requirement | None = None


def choose_runtime(
    wanted: WallWanted,
    available: Sequence[RuntimeFacts],
    table: Mapping[Trust, str] | None = None,
) -> str:
    """Return the name of the runtime that is named, or of the cheapest whose wall is enough.

    `table` names one for a level of trust; what a policy names comes before it. Whoever names it,
    a runtime that is too weak or not there is refused.
    """
    named = wanted.runtime or (table or {}).get(wanted.trust)
    refused = {facts.name: why for facts in available if (why := _refusal(wanted, facts))}
    if named is not None:
        if all(facts.name != named for facts in available):
            raise Unsupported(f'there is no runtime "{named}" in this release')
        if named in refused:
            raise Unsupported(
                f'runtime "{named}" cannot be used: {refused[named]}; name another, or none to '
                "have one chosen"
            )
        return named
    fit = [facts for facts in available if facts.name not in refused and facts.general]
    if fit:
        return min(fit, key=lambda facts: (facts.cost, facts.name)).name
    refusals = "; ".join(f"{name}: {why}" for name, why in refused.items())
    need = "" if wanted.require is None else f', require = "{wanted.require.value}"'
    raise Unsupported(
        f'no runtime here is strong enough for trust = "{wanted.trust.value}"{need} '
        f"({refusals or 'there is no runtime at all'}); "
        "make one of them available or state more trust"
    )


def _refusal(wanted: WallWanted, facts: RuntimeFacts) -> str | None:
    if not facts.strength.covers(wanted.trust):
        return f'its wall is for trust = "{facts.strength.value}" only'
    if wanted.require is Requirement.OWN_KERNEL and not facts.own_kernel:
        return "it has no kernel of its own"
    if not facts.available:
        return facts.why_not or "not available"
    return None


def parse_table(text: str) -> dict[Trust, str]:
    """Return the runtimes that a text like "internal=gvisor" names for levels of trust."""
    table: dict[Trust, str] = {}
    levels, names = [each.value for each in Trust], [each.value for each in RuntimeName]
    for part in filter(None, (part.strip() for part in text.split(","))):
        level, equals, name = part.partition("=")
        if not equals or level not in levels or name not in names or Trust(level) in table:
            raise RequestError(
                f"{TABLE_VARIABLE} has {quote(part)}; write each level of trust once, such as "
                f"{_EXAMPLE}, with levels of {', '.join(levels)} and runtimes of {', '.join(names)}"
            )
        strength = STRENGTHS.get(name)
        if strength is not None and not strength.covers(Trust(level)):
            raise RequestError(
                f"{TABLE_VARIABLE} gives {level} the runtime {name}, whose wall is for trust = "
                f'"{strength.value}" only; name a stronger one'
            )
        table[Trust(level)] = name
    return table
