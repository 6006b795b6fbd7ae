"""What is remembered of sandboxes as they come and go, so that a killed server can tell."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import msgspec

from cloister.errors import AlreadyExists, CloisterError, RequestError
from cloister.model import Limits, quote
from cloister.sandbox.host_places import told_of
from cloister.server.records import Records, SandboxRow
from cloister.server.resident import Resident
from cloister.server.settings import Settings
from cloister.server.spec import SandboxSpec, timeout_of
from cloister.server.tenancy import TenantName

log = logging.getLogger("cloister.server")

# Of a sandbox that has ended, so long can be asked what became of it.
_REMEMBER_ENDED_S = 7 * 24 * 3600.0
# What was asked for can be as large as a request: of one that is over no more than this is needed.
_NEEDED_OF_POLICY = ("limits", "storage", "runtime", "trust")


@dataclass(frozen=True, slots=True)
class Origin:
    """How a sandbox came to be asked for: once for each idempotency key, or again under its id."""

    idempotency: str | None = None
    request_sha256: str | None = None
    id: str | None = None
    notes: tuple[tuple[str, str], ...] = ()


PLAIN = Origin()


@dataclass(frozen=True, slots=True)
class Wish:
    """A sandbox that a tenant is about to have: what was asked for, and how."""

    tenant: TenantName
    spec: SandboxSpec
    keep: str | None
    origin: Origin


class Remembered:
    """Writes each change of a sandbox's life to the records, before anybody is told of it."""

    def __init__(self, records: Records, settings: Settings) -> None:
        self._records = records
        self._settings = settings

    async def settle(self) -> None:
        """Settle what an earlier server left: what is kept stays, what ran has ended."""
        now = time.time()
        for row in await self._records.sandbox_rows(None, state="running"):
            kept = row.keep is not None
            await self._records.change_sandbox(
                row.id,
                state="kept" if kept else "ended",
                ended_at=now,
                ending="the server ended while it was running",
                spec=row.spec if kept else _needed(row.spec),
            )
            log.warning(
                "ended with an earlier server",
                extra={"sandbox": row.id, "tenant": row.tenant, "kept": kept},
            )
        await self._records.forget_ended(now - _REMEMBER_ENDED_S)

    async def answered(self, tenant: TenantName, origin: Origin) -> str | None:
        """Return the sandbox that the same request was answered with before."""
        if origin.idempotency is None:
            return None
        rows = await self._records.sandbox_rows(tenant, idempotency=origin.idempotency)
        if not rows:
            return None
        if rows[0].request_sha256 != origin.request_sha256:
            raise RequestError(
                f"the idempotency key {quote(origin.idempotency)} came with another request before"
            )
        return rows[0].id

    async def begin(self, wish: Wish, inner_id: str, limits: Limits) -> SandboxRow:
        """Remember one that is about to be started."""
        now, origin = time.time(), wish.origin
        row = SandboxRow(
            id=origin.id or inner_id,
            tenant=wish.tenant,
            state="running",
            inner_id=inner_id,
            keep=wish.keep,
            created_at=now,
            ended_at=None,
            ending=None,
            deadline_at=now + timeout_of(wish.spec, limits, self._settings),
            # A limit that nobody named is a text of its own kind.
            spec=msgspec.json.encode(wish.spec, enc_hook=str).decode(),
            metadata=wish.spec.metadata or {},
            notes=dict(origin.notes),
            idempotency=origin.idempotency,
            request_sha256=origin.request_sha256,
        )
        if origin.id is not None:
            await self._again(row)
            return row
        try:
            await self._records.add_sandbox(row)
        except AlreadyExists:
            raise RequestError(
                f"the request with the idempotency key {quote(row.idempotency)} is being done"
            ) from None
        return row

    async def _again(self, row: SandboxRow) -> None:
        names = ("state", "inner_id", "ended_at", "ending", "deadline_at", "metadata", "spec")
        changes: dict[str, Any] = {name: getattr(row, name) for name in names}
        await self._records.change_sandbox(row.id, **changes)

    async def failed(self, wish: Wish, row: SandboxRow, error: BaseException) -> None:
        """Note that one could not be started."""
        said = told_of(error) if isinstance(error, CloisterError) else type(error).__name__
        is_over = wish.keep is None or wish.origin.id is None
        await self._records.change_sandbox(
            row.id,
            state="ended" if is_over else "kept",
            spec=_needed(row.spec) if is_over else row.spec,
            ended_at=time.time(),
            ending=f"it could not be started: {said}",
            deadline_at=None,
            # What failed may be asked for again.
            idempotency=None,
        )

    async def ended(self, resident: Resident, why: str) -> None:
        """Note that one has ended, and why."""
        if resident.keep is None:
            # Before it has ended: then nobody has begun it again, under the same id.
            for row in await self._records.sandbox_rows(resident.tenant, id=resident.id):
                await self._records.change_sandbox(row.id, spec=_needed(row.spec))
        await self._records.change_sandbox(
            resident.id,
            state="ended" if resident.keep is None else "kept",
            ended_at=time.time(),
            ending=why,
            deadline_at=None,
        )

    async def removed(self, row: SandboxRow) -> None:
        """Note that nothing is kept any more of one that was."""
        spec = _needed(row.spec)
        ending = "removed by its owner"
        await self._records.change_sandbox(row.id, state="ended", ending=ending, spec=spec)


def _needed(spec: str) -> str:
    """Return what is still asked about a sandbox when nothing of it is kept or runs."""
    policy = msgspec.json.decode(spec).get("policy") or {}
    left = {name: policy[name] for name in _NEEDED_OF_POLICY if name in policy}
    return msgspec.json.encode({"policy": left} if left else {}).decode()
