"""One row of each table as a frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token as it is kept: everything but its secret."""

    id: str
    tenant: str
    role: str
    scopes: tuple[str, ...]
    sha256: str
    sandbox: str | None
    label: str | None
    created_at: float
    expires_at: float | None
    revoked_at: float | None

    def is_valid(self, now: float) -> bool:
        """Whether it still opens anything."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True)
class SecretRow:
    """A secret of a tenant, sealed, and the hosts it may be sent to."""

    tenant: str
    name: str
    hosts: tuple[str, ...]
    sealed: str
    created_at: float


@dataclass(frozen=True, slots=True)
class SandboxRow:
    """A sandbox as it is remembered; `state` is running, kept or ended."""

    id: str
    tenant: str
    state: str
    inner_id: str
    keep: str | None
    created_at: float
    ended_at: float | None
    ending: str | None
    deadline_at: float | None
    spec: str
    metadata: Mapping[str, str]
    notes: Mapping[str, str]
    idempotency: str | None = None
    request_sha256: str | None = None
