"""Which sandboxes are worth starting ahead: those that take time, and are the same to everybody."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from cloister.sandbox import Sandbox
from cloister.server.pool import Recipe
from cloister.server.settings import Settings
from cloister.server.shelves import Resolved
from cloister.server.spec import SandboxSpec
from cloister.server.tokens import Caller

# Read or taken when a sandbox is started: by the next who asks it might be another.
_OF_THE_MOMENT = ("mount", "volume", "secrets")


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is done to a sandbox that was started ahead; `name` tells one from another."""

    name: str
    act: Callable[[Sandbox], Awaitable[None]]


def recipe_of(
    caller: Caller,
    asked: SandboxSpec,
    resolved: Resolved,
    wanted: Mapping[str, Any],
    settings: Settings,
    prepared: Prepared | None,
) -> Recipe | None:
    """Return how to make another like this one, or None if that is not done ahead."""
    spec, template = resolved.spec, resolved.template
    is_slow = template is not None and (template.start or template.ready is not None)
    if not (is_slow or prepared is not None) or spec.keep is not None or spec.volumes:
        return None
    policy = template.policy.as_dict() if template is not None else spec.policy or {}
    if any(policy.get(key) for key in _OF_THE_MOMENT):
        return None
    limits = wanted["limits"]
    if limits.lifetime is not None or (limits.idle is not None and limits.idle < settings.warm_s):
        # Its clock would run while it waits.
        return None
    same = msgspec.structs.replace(spec, metadata=None, timeout=None, at_timeout="end", lease=None)
    name = "" if prepared is None else prepared.name
    # A limit that nobody named is a text of its own kind.
    kind = msgspec.json.encode([same, caller.role, name], enc_hook=str)
    return Recipe(
        caller.tenant,
        kind,
        limits,
        lambda: Sandbox(**wanted),
        None if prepared is None else prepared.act,
        asked.template,
        None if template is None else template.reference,
    )
