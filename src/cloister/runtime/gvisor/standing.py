"""A sandbox that has gone on from memory before it was known who it is: it becomes somebody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cloister.errors import CloisterError, RequestError
from cloister.model import SandboxId
from cloister.runtime.base import Guest, Posture
from cloister.runtime.memory import Memory
from cloister.runtime.namespace import NamespaceRuntime
from cloister.runtime.namespace.guest import NamespaceGuest
from cloister.runtime.namespace.posture import parse_posture
from cloister.runtime.plan import Plan


async def take_over(
    launching: NamespaceRuntime,
    memory: Memory,
    id: SandboxId,
    on_lost: Callable[[CloisterError], None],
    require: Callable[[Plan, Posture], None],
) -> Guest:
    """Let it go on as `id`, with chance of its own; whoever was asked before asks no more."""
    guest, renewal = memory.standing, memory.renewal
    if not isinstance(guest, NamespaceGuest) or renewal is None:
        raise RequestError("nobody stands ready who could go on")
    try:
        launching.hand_over(guest, id, on_lost)
        await launching.pause(guest, False)
        await guest.link.hold()
        said = await guest.link.renew(renewal.number, renewal.seed, renewal.name)
        posture = parse_posture(said.facts, {"wall": guest.runtime})
        require(guest.plan, posture)
        guest.posture = Posture({**guest.posture.facts, **posture.facts})
    except BaseException:
        await asyncio.shield(launching.end(guest))
        raise
    return guest
