"""Moves a kept sandbox behind a wall for another trust: its disk stays, its programs do not."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from cloister.errors import RequestError
from cloister.model import Trust, quote
from cloister.node import open_store
from cloister.policy import STRENGTHS, Policy, read_policy
from cloister.sandbox.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class Promoted:
    """What a sandbox was behind, and what it is behind now."""

    trust_before: Trust
    trust: Trust
    wall: str


async def promote(name: str, trust: Trust, *, weaker: bool = False) -> Promoted:
    """Have the kept sandbox of that name started behind a wall for this trust from now on.

    It is started there once, so that what cannot be is refused and nothing is changed. A weaker
    wall than it had is taken only where `weaker` says so.
    """
    store = await open_store()
    kept = await asyncio.to_thread(store.kept.find, name)
    before = read_policy(json.loads(kept.policy), f"kept sandbox {name}")
    if before.trust.covers(trust) and before.trust is not trust and not weaker:
        raise RequestError(
            f'{quote(name)} is behind a wall for trust = "{before.trust.value}", which is stronger '
            f'than one for "{trust.value}"; say so (--weaker) if that is what you want'
        )
    async with Sandbox(_with_trust(before, trust), keep=name) as sandbox:
        wall = sandbox.guest.runtime
        if sandbox.recording is not None:
            sandbox.recording.promoted(before.trust.value, trust.value, wall)
    return Promoted(before.trust, trust, wall)


def _with_trust(policy: Policy, trust: Trust) -> Policy:
    """Return the policy for another trust; a wall that it names stays if it is strong enough."""
    named = policy.runtime
    stays = named is not None and STRENGTHS[named].covers(trust)
    return policy.replace(trust=trust, runtime=named if stays else None)
