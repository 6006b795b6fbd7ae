"""What each tenant has at the moment, held against what it may have."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from cloister.errors import Exhausted, LimitName
from cloister.model import Limits, format_bytes
from cloister.server.settings import Settings
from cloister.server.tenancy import TenantName

# The part of all connections that one tenant may have under way.
_SHARE = 4


@dataclass(slots=True)
class Asked:
    """Requests: how many may be made, as of a time, and those that have begun and not ended."""

    requests: float = 0.0
    counted_at: float = 0.0
    under_way: int = 0


@dataclass(slots=True)
class Held:
    """What a tenant has: sums of what its sandboxes were promised."""

    sandboxes: int = 0
    memory_bytes: int = 0
    cpus: float = 0.0
    disk_bytes: int = 0
    pids: int = 0
    # Beside what runs: kept disks, snapshots, volumes, templates.
    stored_bytes: int = 0
    # What is being stored, and was not there yet when the rest was counted.
    storing_bytes: int = 0
    # What the tenant's own tokens ask, and what others do who know an address of a port of it.
    own: Asked = field(default_factory=Asked)
    visits: Asked = field(default_factory=Asked)

    @property
    def all_disk_bytes(self) -> int:
        """All that counts as disk: of what runs, of what is stored and of what is about to be."""
        return self.disk_bytes + self.stored_bytes + self.storing_bytes


class Quotas:
    """Counts for each tenant, and refuses what would be too much."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._held: dict[TenantName, Held] = {}

    def held(self, tenant: TenantName) -> Held:
        """Return what a tenant has."""
        held = self._held.get(tenant)
        if held is None:
            held = self._held[tenant] = Held()
            rate = self._settings.quota_of(tenant).requests_per_s
            for asked in (held.own, held.visits):
                asked.requests, asked.counted_at = rate, time.monotonic()
        return held

    def reserve(self, tenant: TenantName, limits: Limits) -> None:
        """Count one more sandbox, or refuse it; `release` takes it back."""
        quota, held = self._settings.quota_of(tenant), self.held(tenant)
        if held.sandboxes + 1 > quota.sandboxes:
            raise _over("sandboxes", f"{held.sandboxes} sandboxes", str(quota.sandboxes))
        # Where a limit was lifted, nothing was promised that could be counted.
        memory, disk, cpus = limits.memory or 0, limits.disk or 0, limits.cpus or 0
        if held.memory_bytes + memory > quota.memory_bytes:
            have, most = format_bytes(held.memory_bytes), format_bytes(quota.memory_bytes)
            raise _over("memory", f"{have} of memory", most)
        if held.all_disk_bytes + disk > quota.disk_bytes:
            have, most = format_bytes(held.all_disk_bytes), format_bytes(quota.disk_bytes)
            raise _over("disk", f"{have} of disk", most)
        if held.cpus + cpus > quota.cpus:
            raise _over("cpus", f"{held.cpus:g} processors", f"{quota.cpus:g}")
        # A host has so many numbers for processes, and without one nobody starts anything.
        if held.pids + limits.pids > quota.pids:
            raise _over("pids", f"{held.pids} processes", str(quota.pids))
        self._add(held, limits, 1)

    def release(self, tenant: TenantName, limits: Limits) -> None:
        """Take back what `reserve` counted."""
        self._add(self.held(tenant), limits, -1)

    def _add(self, held: Held, limits: Limits, sign: int) -> None:
        held.sandboxes += sign
        held.memory_bytes += sign * (limits.memory or 0)
        held.disk_bytes += sign * (limits.disk or 0)
        held.cpus += sign * (limits.cpus or 0)
        held.pids += sign * limits.pids

    def count_request(self, tenant: TenantName, *, visits: bool = False) -> None:
        """Count one request, or refuse it; strangers take nothing of what the tenant may ask."""
        rate, held = self._settings.quota_of(tenant).requests_per_s, self.held(tenant)
        asked, now = held.visits if visits else held.own, time.monotonic()
        # Two seconds' worth may come at once.
        asked.requests = min(2 * rate, asked.requests + (now - asked.counted_at) * rate)
        asked.counted_at = now
        if asked.requests < 1:
            raise Exhausted(
                f"more than {rate:g} requests a second; wait and try again", limit="requests"
            )
        asked.requests -= 1

    def enter(self, tenant: TenantName, *, visits: bool = False) -> None:
        """Count what has begun, or refuse it: no tenant takes all connections of a server."""
        held = self.held(tenant)
        asked = held.visits if visits else held.own
        most = max(1, self._settings.most_connections // (2 * _SHARE if visits else _SHARE))
        if asked.under_way >= most:
            raise Exhausted(
                f"{asked.under_way} requests of this tenant are under way, and {most} may be; "
                "end some first",
                limit="requests",
            )
        asked.under_way += 1

    def leave(self, tenant: TenantName, *, visits: bool = False) -> None:
        """Take back what `enter` counted."""
        held = self.held(tenant)
        (held.visits if visits else held.own).under_way -= 1


def _over(limit: LimitName, have: str, most: str) -> Exhausted:
    return Exhausted(
        f"this tenant has {have}, and may have {most} in all; end something first", limit=limit
    )
