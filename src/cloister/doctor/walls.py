"""Proves each wall but the first by starting a sandbox behind it, and says what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from cloister.doctor.finding import Finding, missing, ok
from cloister.errors import CloisterError
from cloister.node import Node
from cloister.policy import Policy, RuntimeFacts, RuntimeName
from cloister.runtime.telling import tell
from cloister.sandbox import Sandbox

_START_S = 90.0
# (module (func (export "_start")))
_NOTHING = bytes.fromhex("0061736d0100000001040160000003020100070a01065f737461727400000a040102000b")


async def look_at_walls(policy: Policy) -> AsyncIterator[Finding]:
    """Yield of every wall beside `namespace` whether a sandbox of this policy stands behind it."""
    for facts in Node.current().facts():
        # What is in no release has nothing to be proved or installed.
        known = facts.available or (facts.general and "; " in (facts.why_not or ""))
        if facts.name != RuntimeName.NAMESPACE and known:
            yield await _look_at(facts, policy)


async def _look_at(facts: RuntimeFacts, policy: Policy) -> Finding:
    name = f"wall: {facts.name}"
    if not facts.available:
        why, _, fix = (facts.why_not or "").partition("; ")
        return missing(name, why, fix)
    tell(f"starting a sandbox behind {facts.name}")
    wanted, command = policy.replace(runtime=facts.name), ["/bin/true"]
    try:
        if facts.name == RuntimeName.MICROVM:
            from cloister.runtime.microvm.smallest import COMMAND, smallest_policy

            wanted, command = smallest_policy(wanted), COMMAND
        async with asyncio.timeout(_START_S), Sandbox(wanted, label="cloister doctor") as sandbox:
            if sandbox.runs_modules:
                (await sandbox.run_module(_NOTHING)).check()
            else:
                (await sandbox.run(command)).check()
            found = sandbox.posture.facts
    except TimeoutError:
        return missing(name, f"it did not stand within {_START_S:.0f} s", _fix(facts))
    except CloisterError as error:
        return missing(name, f"{error}", _fix(facts))
    kvm = found.get("kvm")
    words = [found.get("wall_version"), found.get("wall_platform"), found.get("kernel")]
    if kvm is not None and found.get("wall_platform") != "kvm":
        words.append(f"KVM: {kvm}")
    told = ", ".join(word for word in words if word)
    return ok(name, f'for trust = "{facts.strength.value}": {told}' if told else "it stands")


def _fix(facts: RuntimeFacts) -> str:
    return f"see docs/runtimes.md; `cloister run --runtime {facts.name} -- true` tries it again"
