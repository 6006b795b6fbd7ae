"""All live sandboxes of one server, by tenant; the only place where one is looked up by its id."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from cloister.errors import Exhausted, GuestGone, NotFound, RequestError
from cloister.model import Limits, quote
from cloister.sandbox import Sandbox
from cloister.sandbox.fork import require_count
from cloister.server.all_or_none import all_or_none
from cloister.server.dozing import doze
from cloister.server.lease import Lease
from cloister.server.links import Links
from cloister.server.pool import Pool, Recipe
from cloister.server.quotas import Quotas
from cloister.server.recipes import Prepared, recipe_of
from cloister.server.records import Records, SandboxRow
from cloister.server.remembered import PLAIN, Origin, Remembered, Wish
from cloister.server.resident import Resident
from cloister.server.settings import Settings
from cloister.server.shelves import Shelves
from cloister.server.spec import (
    SandboxSpec,
    parse_timeout,
    require_wall,
    sandbox_settings,
    timeout_of,
)
from cloister.server.stored import Stored
from cloister.server.tenancy import TenantName
from cloister.server.tokens import Caller
from cloister.server.turns import Turns
from cloister.server.vault import Vault
from cloister.server.waking import Waking

log = logging.getLogger("cloister.server")

_MOST_REMEMBERED = 1000


class Fleet:
    """Owns every sandbox of the server. Nobody finds one without saying whose it must be."""

    def __init__(self, records: Records, settings: Settings) -> None:
        self.records = records
        self.settings = settings
        self.quotas = Quotas(settings)
        self.shelves = Shelves(records)
        self.vault = Vault(records)
        self._remembered = Remembered(records, settings)
        self.stored = Stored(settings, self.quotas, self.shelves, self.of_tenant)
        self._residents: dict[tuple[TenantName, str], Resident] = {}
        self.waking = Waking()
        wait_s, longest = settings.queue_s, settings.queue_length
        self._places = Turns(
            settings.most_sandboxes,
            wait_s,
            longest,
            f"the server has had {settings.most_sandboxes} sandboxes, all it may have,",
        )
        self._starts = Turns(
            settings.starts_at_once, wait_s, longest, "too many sandboxes were being started"
        )
        self.pool = Pool(settings, self.quotas, self._places, self._starts, self.shelves)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self.started = 0
        self.links = Links()
        # Why the last of those ended that reached a limit of their own.
        self._exhausted: OrderedDict[tuple[TenantName, str], Exhausted] = OrderedDict()

    async def open(self) -> None:
        """Settle what an earlier server left: what is kept stays, what ran has ended."""
        await self._remembered.settle()
        # In the background: hundreds of disks may be left, and nobody waits for their end.
        self._spawn(self.shelves.sweep())

    @property
    def residents(self) -> Sequence[Resident]:
        """Every live sandbox, whoever it belongs to; for counting, not for looking up."""
        return tuple(self._residents.values())

    @property
    def waiting(self) -> int:
        """How many requests wait for a place."""
        return self._places.waiting + self._starts.waiting

    def find(self, tenant: TenantName, id: str) -> Resident:
        """Return a live sandbox of a tenant; one of another does not exist for them."""
        resident = self._residents.get((tenant, id))
        if resident is None or resident.ended.is_set():
            why = self._exhausted.get((tenant, id))
            if why is not None:
                raise why.with_traceback(None)  # Or it would hold every request that asked.
            raise NotFound(f"no sandbox {quote(id)} is running", what=id)
        return resident

    def peek(self, tenant: TenantName, id: str) -> Resident | None:
        """Return a live sandbox of a tenant, if it has one of that id."""
        resident = self._residents.get((tenant, id))
        return None if resident is None or resident.ended.is_set() else resident

    async def rouse(self, resident: Resident) -> None:
        """Let one go on that its deadline held still, for as long as it was given before."""
        if not resident.is_dozing:
            return
        async with resident.rousing:
            if resident.is_dozing:
                await resident.sandbox.resume()
                resident.is_dozing = False
                await self.extend(resident.tenant, resident.id, resident.timeout_s)

    def renew(self, tenant: TenantName, id: str) -> bool:
        """Renew the lease of a tenant's sandbox; False if there is no such sandbox any more."""
        resident = self.peek(tenant, id)
        if resident is not None and resident.lease is not None:
            resident.lease.renew()
        return resident is not None

    def of_tenant(self, tenant: TenantName) -> list[Resident]:
        """Return the live sandboxes of a tenant."""
        return [each for (owner, _), each in self._residents.items() if owner == tenant]

    async def row(self, tenant: TenantName, id: str) -> SandboxRow:
        """Return what is remembered of a tenant's sandbox, also after its end."""
        rows = await self.records.sandbox_rows(tenant, id=id)
        if not rows:
            raise NotFound(f"no sandbox {quote(id)}", what=id)
        return rows[0]

    async def create(
        self,
        caller: Caller,
        spec: SandboxSpec,
        origin: Origin = PLAIN,
        prepared: Prepared | None = None,
    ) -> Resident:
        """Start a sandbox for a tenant, in its turn, or say why it may not have one.

        One that was started ahead has been `prepared`; of any other that is left to the caller.
        """
        known = await self._remembered.answered(caller.tenant, origin)
        if known is not None:
            return self.find(caller.tenant, known)
        asked, resolved = spec, await self.shelves.resolved(caller.tenant, spec)
        spec = resolved.spec
        wanted = sandbox_settings(spec, caller, self.settings, resolved.before)
        if resolved.template is not None and resolved.template.policy.storage_is_stated:
            # Said again, because its limits are: some of them are only for a disk.
            wanted.setdefault("storage", resolved.template.policy.storage)

        keep = wanted.get("keep")
        if keep is not None and origin.id is None:
            kept = await self.records.sandbox_rows(caller.tenant, keep=keep, state="kept")
            if kept:
                # It goes on with its disk, so it is the same one.
                origin = replace(origin, id=kept[-1].id, notes=tuple(kept[-1].notes.items()))
            else:
                await self.shelves.forget_copied(keep)
        wish = Wish(caller.tenant, spec, keep, origin)
        recipe = recipe_of(caller, asked, resolved, wanted, self.settings, prepared)
        return await self._admit(caller, wish, lambda: Sandbox(**wanted), recipe)

    async def fork(
        self,
        caller: Caller,
        snapshot: str,
        spec: SandboxSpec,
        count: int = 1,
        origin: Origin = PLAIN,
    ) -> list[Resident]:
        """Start sandboxes that begin as a snapshot of the tenant was."""
        if spec.policy is not None or spec.template is not None or spec.image is not None:
            raise RequestError("a fork has the policy of its snapshot; change single fields of it")
        found = await self.shelves.snapshot(caller.tenant, snapshot)
        policy = self.shelves.policy_of(found)
        wanted = sandbox_settings(spec, caller, self.settings, policy.limits)
        keep = wanted.get("keep")
        if keep is not None and require_count(count) > 1:
            raise RequestError("several forks cannot be kept under one name; fork one at a time")

        def make() -> Sandbox:
            # What the snapshot was granted of the host and the network is not inherited.
            bare = policy.replace(mounts=(), volumes=(), egress=None, secrets=())
            sandbox = Sandbox(bare, **wanted)
            sandbox.stand_on(found)
            return sandbox

        wish = Wish(caller.tenant, spec, keep, origin)
        # Known before the first: or each of them would be made to find out.
        await self.stored.count_before(caller.tenant, keep)
        started = await all_or_none(
            count,
            lambda: self._admit(caller, wish, make),
            lambda resident: self._end(resident, "its fork failed"),
        )
        if keep is not None:
            await self.shelves.hand_on_copied(found.sandbox, keep)
        return started

    async def wake(self, caller: Caller, id: str) -> Resident:
        """Start a kept sandbox again, under the id it had."""
        async with self.waking.turn(caller.tenant, id):
            row = await self.row(caller.tenant, id)
            if (caller.tenant, id) in self._residents:
                return self.find(caller.tenant, id)
            if row.state != "kept":
                raise NotFound(f"sandbox {quote(id)} has ended, and nothing of it is kept", what=id)
            spec = msgspec.json.decode(row.spec, type=SandboxSpec)
            return await self.create(caller, spec, Origin(id=id, notes=tuple(row.notes.items())))

    async def end(self, tenant: TenantName, id: str, why: str = "ended by its owner") -> None:
        """End a sandbox; returns when nothing is left but what was to be kept."""
        await self._end(self.find(tenant, id), why)

    async def discard(self, tenant: TenantName, row: SandboxRow) -> None:
        """Remove what was kept of a sandbox that is not running."""
        if row.keep is not None:
            await self.shelves.remove_kept(tenant, row.keep)
        await self._remembered.removed(row)
        self.stored.changed(tenant)

    async def extend(self, tenant: TenantName, id: str, timeout_s: float) -> Resident:
        """Set the deadline anew: so many seconds from now."""
        resident = self.find(tenant, id)
        resident.set_deadline(parse_timeout(timeout_s, self.settings), self._expire)
        await self.records.change_sandbox(id, deadline_at=resident.deadline_at)
        return resident

    @property
    def is_draining(self) -> bool:
        """Whether no new sandbox is started any more."""
        return self._closing

    def drain(self) -> None:
        """Start no new sandbox from now on."""
        self._closing = True
        self.pool.drain()

    async def close(self) -> None:
        """End everything; what is kept stays."""
        self.drain()
        await self.pool.close()
        ending = [self._end(resident, "the server was stopped") for resident in self.residents]
        await asyncio.gather(*ending, return_exceptions=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _admit(
        self,
        caller: Caller,
        wish: Wish,
        make: Callable[[], Sandbox],
        recipe: Recipe | None = None,
    ) -> Resident:
        """Count it, wait for its turn, remember it, start it; undo all of that if one fails."""
        if self._closing:
            raise GuestGone("the server is being stopped", reason="draining")
        tenant, sandbox = caller.tenant, make()
        sandbox.belongs_to(tenant, self.vault.reader(tenant))
        require_wall(wish.spec, sandbox.policy, caller)
        limits = sandbox.policy.limits
        timeout_s = timeout_of(wish.spec, limits, self.settings)
        ready = None if recipe is None else self.pool.take(recipe)
        if ready is None:
            await self._reserve(tenant, limits, wish.keep)
        try:
            if ready is None:
                await self._take_place(tenant)
            try:
                if ready is None:
                    async with self._starts.taken(tenant):
                        resident = await self._start(wish, sandbox, limits)
                else:
                    resident = await self._settle_in(wish, ready, limits)
            except BaseException:
                self._places.give()
                raise
        except BaseException:
            self.quotas.release(tenant, limits)
            raise
        resident.set_deadline(timeout_s, self._expire)
        if wish.spec.at_timeout == "pause":
            resident.at_deadline = partial(doze, self)
        if wish.spec.lease is not None:
            resident.lease = Lease(wish.spec.lease, partial(self._lapse, resident))
        return resident

    async def _reserve(self, tenant: TenantName, limits: Limits, keep: str | None) -> None:
        """Count one more; what was only started ahead for the same tenant makes room for it."""
        await self.stored.count_before(tenant, keep)
        try:
            self.quotas.reserve(tenant, limits)
        except Exhausted:
            if not await self.pool.make_room(tenant):
                raise
            self.quotas.reserve(tenant, limits)

    async def _take_place(self, tenant: TenantName) -> None:
        if self._places.is_full:
            await self.pool.make_room()
        await self._places.take(tenant)

    async def _start(self, wish: Wish, sandbox: Sandbox, limits: Limits) -> Resident:
        with self.waking.claimed(wish, self._residents):
            row = await self._remembered.begin(wish, sandbox.id, limits)
            try:
                await self.vault.open(wish.tenant, sandbox)
            except BaseException as error:
                await self._remembered.failed(wish, row, error)
                raise
            return self._take_in(wish, row, sandbox, limits)

    async def _settle_in(self, wish: Wish, sandbox: Sandbox, limits: Limits) -> Resident:
        """Take in one that was started ahead; it is idle from now on, and not since then."""
        try:
            sandbox.enter()
            sandbox.leave()
            row = await self._remembered.begin(wish, sandbox.id, limits)
        except BaseException:
            await asyncio.shield(sandbox.stop())
            raise
        return self._take_in(wish, row, sandbox, limits)

    def _take_in(self, wish: Wish, row: SandboxRow, sandbox: Sandbox, limits: Limits) -> Resident:
        resident = Resident(
            row.id,
            wish.tenant,
            sandbox,
            limits,
            keep=wish.keep,
            created_at=row.created_at,
            metadata=dict(row.metadata),
            notes=dict(row.notes),
        )
        self._residents[wish.tenant, row.id] = resident
        resident.begin_trace()
        self.started += 1
        self._spawn(self._watch(resident))
        return resident

    async def _watch(self, resident: Resident) -> None:
        """Notice that a sandbox ended by itself."""
        await resident.sandbox.wait_ended()
        why = resident.sandbox.why_ended
        if isinstance(why, Exhausted) and not resident.ended.is_set():
            self._exhausted[resident.tenant, resident.id] = why
            while len(self._exhausted) > _MOST_REMEMBERED:
                self._exhausted.popitem(last=False)
        await self._end(resident, resident.why_ended)

    def _lapse(self, resident: Resident) -> None:
        self._spawn(self._end(resident, "its lease was not renewed: its client is gone"))

    def _expire(self, resident: Resident) -> None:
        self._spawn(self._reach_deadline(resident))

    async def _reach_deadline(self, resident: Resident) -> None:
        if resident.at_deadline is not None:
            await resident.at_deadline(resident)
        else:
            await self._end(resident, "it reached its timeout")

    async def _end(self, resident: Resident, why: str) -> None:
        if resident.ended.is_set():
            await resident.gone.wait()
            return
        resident.ended.set()
        resident.clear_deadline()
        if resident.lease is not None:
            resident.lease.end()
        noting = asyncio.ensure_future(self._remembered.ended(resident, why))
        try:
            await resident.sandbox.stop()
        finally:
            del self._residents[resident.tenant, resident.id]
            resident.end_trace()
            self._places.give()
            self.quotas.release(resident.tenant, resident.limits)
            self.stored.changed(resident.tenant)
            resident.gone.set()
            await noting

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("work in the background failed", exc_info=task.exception())
