"""Starts sandboxes for modules of WebAssembly, inside the wall that the launcher builds anyway."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from cloister.errors import CloisterError, RequestError, Unsupported
from cloister.model import Profile, SandboxId
from cloister.policy import STRENGTHS, HostRoot, Policy, RuntimeFacts
from cloister.runtime.base import Guest, Posture
from cloister.runtime.ground import BARE, Ground
from cloister.runtime.namespace import NamespaceRuntime
from cloister.runtime.namespace.guest import NamespaceGuest
from cloister.runtime.namespace.posture import require_posture
from cloister.runtime.plan import HostMount, Plan
from cloister.runtime.wasm.program import find_wasmtime, why_absent

# What workers take beside the memory of the modules, and their threads, of which each has a few.
_OWN_MEMORY_BYTES = 128 * 2**20
_OWN_THREADS = 256


class WasmGuest(NamespaceGuest):
    """One running sandbox of this runtime."""

    runtime = "wasm"
    runs_modules = True

    @property
    def is_alone(self) -> bool:
        """Whether nothing runs inside: between calls a worker waits, and touches nothing."""
        return True


class WasmRuntime:
    """The wall of wasmtime, within the launcher's wall."""

    name = "wasm"

    def __init__(self, launching: NamespaceRuntime) -> None:
        self._launching = launching

    def facts(self) -> RuntimeFacts:
        """Whether wasmtime is installed; it runs modules only, so it is taken only by name."""
        why_not = why_absent()
        strength = STRENGTHS[self.name]
        return RuntimeFacts(self.name, strength, 3, why_not is None, why_not, general=False)

    async def prepare(self) -> None:
        """Start the launcher, and find wasmtime."""
        await self._launching.prepare()
        await asyncio.to_thread(find_wasmtime)

    def record_path(self, id: SandboxId) -> Path:
        """Return where a line about a sandbox of ours goes."""
        return self._launching.record_path(id)

    def with_way_out(self, ground: Ground, policy: Policy) -> Ground:
        """Refuse: what a module may import has no sockets."""
        raise Unsupported(
            'the runtime "wasm" has no way out: modules of WASI preview 1 have no sockets; leave '
            'egress out of the policy, or name runtime = "namespace"'
        )

    def plan(self, id: SandboxId, policy: Policy, ground: Ground = BARE) -> Plan:
        """Return what the launcher will be told."""
        _require_modules_only(policy)
        plan = self._launching.plan(id, _roomy(policy), ground)
        shown = tuple(
            HostMount(os.fsencode(path), target, False, None)
            for path, target in find_wasmtime().shown
        )
        return dataclasses.replace(plan, mounts=(*plan.mounts, *shown))

    async def start(
        self, id: SandboxId, plan: Plan, on_lost: Callable[[CloisterError], None]
    ) -> Guest:
        """Build the wall; nothing has run inside when this returns or raises."""
        guest = await self._launching.launch(id, plan, on_lost, WasmGuest, require_posture)
        version = find_wasmtime().version
        ours = {"wall_version": f"wasmtime {version}", "wall_platform": "namespace"}
        guest.posture = Posture({**guest.posture.facts, **ours})
        return guest

    async def destroy(self, guest: Guest) -> None:
        """End it by the kernel's means."""
        if not isinstance(guest, WasmGuest):
            raise RequestError("this guest belongs to another runtime")
        await self._launching.end(guest)

    async def pause(self, guest: Guest, paused: bool) -> None:
        """Stop or continue everything of it."""
        await self._launching.pause(guest, paused)

    async def close(self) -> None:
        """Nothing is held here that the launcher's runtime does not hold."""

    def abandon(self) -> None:
        """Nothing is held here that the launcher's runtime does not hold."""


def _require_modules_only(policy: Policy) -> None:
    if not isinstance(policy.root, HostRoot):
        raise Unsupported(
            'the runtime "wasm" runs modules, which see no root filesystem; leave root and image '
            'out of the policy, or name runtime = "namespace"'
        )
    if policy.profile is not Profile.DEFAULT:
        raise Unsupported(
            f'the runtime "wasm" has no profile "{policy.profile.value}", for there is nothing in '
            "it that a module could do; leave profile out of the policy"
        )


def _roomy(policy: Policy) -> Policy:
    """Return the policy with limits for workers too, of which modules are a part."""
    limits = policy.limits
    memory = None if limits.memory is None else limits.memory + _OWN_MEMORY_BYTES
    pids = limits.pids + _OWN_THREADS
    return policy.replace(limits=limits.replace(memory=memory or "unlimited", pids=pids))
