"""Tokens: a random secret in the hands of a client, its hash and what it allows in the records."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from cloister.errors import CloisterError, NotFound, RequestError, ScopeMissing, TokenRefused
from cloister.model import parse_sandbox_id, quote
from cloister.server.records import Records, TokenRow
from cloister.server.records.database import add_token, list_tokens, revoke_token
from cloister.server.tenancy import OWNER, TenantName, parse_tenant

# Both forms are the same token: clients written for E2B accept only the second.
PREFIXES = ("clo_", "e2b_")
_TEXT = re.compile(r"(?:clo|e2b)_([0-9a-f]{12})([0-9a-f]{40})")
_REMEMBERED = 10_000
# A token that was revoked by another process may open something for so long.
_REMEMBERED_S = 1.0


class Role(StrEnum):
    """What a token may ask for: `tenant` nothing of the host, `admin` what its owner could."""

    TENANT = "tenant"
    ADMIN = "admin"


SCOPES = (
    *("sandboxes:read", "sandboxes:write"),
    *("volumes:read", "volumes:write"),
    *("snapshots:read", "snapshots:write"),
    *("images:read", "templates:read", "templates:write"),
    *("ledger:read", "usage:read"),
    *("approvals:read", "approvals:write"),
    *("secrets:read", "secrets:write"),
)
# Who lets programs run is not yet who answers their questions: that is said of a token, or not so.
USUAL_SCOPES = tuple(scope for scope in SCOPES if scope != "approvals:write")


# What a token for one sandbox can be about; everything else is of all of them.
_OF_ONE_SANDBOX = ("sandboxes", "snapshots", "ledger")


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever makes a request: which tenant they are, and what their token allows."""

    tenant: TenantName
    role: Role
    scopes: frozenset[str]
    token: str
    # The only sandbox that the token opens, if it opens only one.
    sandbox: str | None = None

    def require(self, scope: str) -> None:
        """Refuse what the token does not allow; to write includes to read."""
        if not self.allows(scope):
            raise ScopeMissing(
                f"this token lacks the scope {scope}; `cloister token create --scope {scope}` on "
                "the server makes one that has it",
                scope=scope,
            )
        if scope.partition(":")[0] not in _OF_ONE_SANDBOX:
            self.require_any_sandbox()

    def allows(self, scope: str) -> bool:
        """Whether the token has a scope, or that to write, which includes it."""
        kind, _, _ = scope.partition(":")
        return scope in self.scopes or f"{kind}:write" in self.scopes

    def require_any_sandbox(self) -> None:
        """Refuse a token that is for one sandbox alone."""
        if self.sandbox is not None:
            raise ScopeMissing("this token is for one sandbox alone", scope="all sandboxes")

    def require_admin(self) -> None:
        """Refuse everybody but the machine's owner."""
        if self.role is not Role.ADMIN:
            raise ScopeMissing("only a token of the role admin may do this", scope="admin")


OWNER_CALLER = Caller(OWNER, Role.ADMIN, frozenset(SCOPES), "socket")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a new token shall be; `lifetime_s` None is without an end."""

    tenant: str
    role: str = "tenant"
    scopes: Iterable[str] = USUAL_SCOPES
    lifetime_s: float | None = None
    sandbox: str | None = None
    label: str | None = None


def is_token(text: str) -> bool:
    """Whether a text has the form of a token, of whomever."""
    return _TEXT.search(text) is not None


def create_token(records: Records, wish: Wish) -> tuple[str, TokenRow]:
    """Make a token; its text is returned this once and can never be had again."""
    tenant = parse_tenant(wish.tenant)
    role = _parse_role(wish.role)
    if (tenant == OWNER) != (role is Role.ADMIN):
        raise RequestError(f"tenant {OWNER} and the role admin belong together; name both")
    scopes = tuple(dict.fromkeys(_parse_scope(scope) for scope in wish.scopes))
    if not scopes:
        raise RequestError("a token without scopes opens nothing; name one")
    id, secret = secrets.token_hex(6), secrets.token_hex(20)
    now = time.time()
    row = TokenRow(
        id=id,
        tenant=tenant,
        role=role.value,
        scopes=scopes,
        sha256=_hash(secret),
        sandbox=None if wish.sandbox is None else parse_sandbox_id(wish.sandbox),
        label=wish.label,
        created_at=now,
        expires_at=None if wish.lifetime_s is None else now + wish.lifetime_s,
        revoked_at=None,
    )
    records.do_now(lambda connection: add_token(connection, row))
    return f"{PREFIXES[0]}{id}{secret}", row


def all_tokens(records: Records) -> list[TokenRow]:
    """Return every token that was ever made."""
    return records.do_now(list_tokens)


def revoke(records: Records, id: str) -> None:
    """End a token by its id; servers notice within a second."""
    if not records.do_now(lambda connection: revoke_token(connection, id, time.time())):
        raise NotFound(f"no valid token {quote(id)}; `cloister token ls` has them", what=id)


class Tokens:
    """Finds out who a token belongs to."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._remembered: dict[str, tuple[float, TokenRow]] = {}

    async def caller(self, text: str | None) -> Caller:
        """Return whose token this is, or raise TokenRefused, whatever is wrong with it."""
        found = _TEXT.fullmatch(text) if text is not None else None
        if found is None:
            raise TokenRefused("no valid token was given; `cloister token create` makes one")
        id, secret = found.groups()
        row = await self._row(id)
        # Compared also where there is no such id, so that both take the same time.
        known = "" if row is None else row.sha256
        if not hmac.compare_digest(known, _hash(secret)) or row is None:
            raise TokenRefused("no valid token was given; `cloister token create` makes one")
        if not row.is_valid(time.time()):
            raise TokenRefused("the token has expired or was revoked; ask for another")
        return Caller(
            TenantName(row.tenant), Role(row.role), frozenset(row.scopes), row.id, row.sandbox
        )

    async def is_valid(self, id: str) -> bool:
        """Whether a token that was valid still is; where that cannot be found out it is not."""
        if id == OWNER_CALLER.token:
            # Who comes by the unix socket has none that could be revoked.
            return True
        try:
            row = await self._row(id)
        except CloisterError:
            return False
        return row is not None and row.is_valid(time.time())

    async def _row(self, id: str) -> TokenRow | None:
        now = time.monotonic()
        until, row = self._remembered.get(id, (0.0, None))
        if row is not None and now < until:
            return row
        found = await self._records.token_row(id)
        if found is not None:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            self._remembered[id] = (now + _REMEMBERED_S, found)
        return found


def _hash(secret: str) -> str:
    # The secret is 160 random bits: nobody can try them all, however fast a hash is.
    return hashlib.sha256(secret.encode()).hexdigest()


def _parse_role(value: str) -> Role:
    try:
        return Role(value)
    except ValueError:
        raise RequestError(f"role is {quote(value)}; it may be tenant or admin") from None


def _parse_scope(value: object) -> str:
    if value not in SCOPES:
        raise RequestError(f"scope is {quote(value)}; the scopes are {', '.join(SCOPES)}")
    return str(value)
