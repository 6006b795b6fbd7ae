"""The first words with a guest: who goes on from memory, and whether all is as it was planned."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from cloister.errors import LaunchFailed
from cloister.runtime.base import Posture
from cloister.runtime.memory import Memory
from cloister.runtime.plan import Plan
from cloister.wire import Link
from cloister.wire.messages import encode_renew


async def go_on(link: Link, control: socket.socket, memory: Memory, wait_s: float) -> None:
    """Say who it is that goes on; one that is renewed greets again."""
    if memory.renewal is None:
        link.proceed(control)
        await link.wait_answer(wait_s)
    else:
        renewal = memory.renewal
        link.send(encode_renew(link.new_id(), renewal.number, renewal.seed, renewal.name))


def parse_posture(facts: bytes, ours: Mapping[str, str]) -> Posture:
    """Return what a guest says of itself, and what this side knows."""
    pairs = (line.partition("=") for line in facts.decode("utf-8", "replace").splitlines())
    # What this side knows is not for the guest to say.
    return Posture({**{name: value for name, _, value in pairs}, **ours})


def require_posture(plan: Plan, posture: Posture) -> None:
    """Compare what the kernel said with what was planned, once more and on this side."""
    ids_of = " ".join([str(plan.init_uid)] * 4)
    wanted = {
        "uid": ids_of,
        "no_new_privileges": "1",
        "seccomp": "2",
        "capabilities": f"{plan.room.guest_capabilities:016x}",
        "bounding": f"{plan.room.bounding:016x}",
        "interfaces": "lo",
        "uid_map": " ".join(f"{r.inside} {r.outside} {r.count}" for r in plan.uid_map),
    }
    require_facts(posture, wanted)


def require_facts(posture: Posture, wanted: Mapping[str, str]) -> None:
    """Refuse a posture in which any of these is otherwise."""
    for name, value in wanted.items():
        found = posture.facts.get(name)
        if found != value:
            raise LaunchFailed(
                f"posture differs from the plan: {name} is {found!r}, planned {value!r}; "
                "the sandbox was ended before anything ran",
                step="posture",
            )
