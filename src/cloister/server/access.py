"""Who a request comes from: the owner by the unix socket, anybody else by a token."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from starlette.requests import HTTPConnection

from cloister.errors import RequestError, ScopeMissing, TokenRefused
from cloister.model import quote
from cloister.server.discretion import answer_owner
from cloister.server.fleet import Fleet
from cloister.server.tenancy import TenantName
from cloister.server.tokens import OWNER_CALLER, Caller, Role, Tokens
from cloister.server.while_valid import LET_IN_BY

# Set by the entrance of a listener, never by anything that a client sends.
TRUSTED = "cloister.trusted"
# Whose request it is, once that is known; set here.
_TENANT = "cloister.tenant"


class Access:
    """Finds out who calls, and holds them to their rate."""

    def __init__(self, fleet: Fleet, tokens: Tokens) -> None:
        self.fleet = fleet
        self.tokens = tokens
        self._hosts = fleet.settings.hosts

    async def caller(self, connection: HTTPConnection) -> Caller:
        """Return who makes a request, or refuse it before anything is done for it."""
        answer_owner(False)
        if connection.scope.get(TRUSTED):
            caller = OWNER_CALLER
        else:
            self.require_host(connection)
            caller = await self.tokens.caller(bearer(connection))
            connection.scope[LET_IN_BY] = caller.token
        answer_owner(caller.role is Role.ADMIN)
        self.hold(connection.scope, caller.tenant)
        return caller

    def hold(
        self, scope: MutableMapping[str, Any], tenant: TenantName, *, visits: bool = False
    ) -> None:
        """Count a request: against the tenant's rate, and for as long as it is under way.

        One that `visits` shows no token: whoever sends such keeps the tenant from nothing.
        """
        self.fleet.quotas.count_request(tenant, visits=visits)
        if not scope.get(TRUSTED) and _TENANT not in scope:
            self.fleet.quotas.enter(tenant, visits=visits)
            scope[_TENANT] = tenant, visits

    def release(self, scope: MutableMapping[str, Any]) -> None:
        """Note that a request is over, whether it was counted or not."""
        tenant, visits = scope.pop(_TENANT, (None, False))
        if tenant is not None:
            self.fleet.quotas.leave(tenant, visits=visits)

    def require_host(self, connection: HTTPConnection) -> None:
        """Refuse a request for another host: a web page may have led a browser here."""
        host = connection.headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if not any(name == known or _is_below(name, known) for known in self._hosts):
            raise RequestError(f"host {quote(host)} is not a name of this server; see hosts")
        origin = connection.headers.get("origin")
        if origin is not None and connection.scope["type"] == "websocket":
            _, _, from_host = origin.lower().partition("://")
            if from_host != host:
                raise ScopeMissing(
                    f"a page of {quote(origin)} may not connect here", scope="origin"
                )


def _is_below(name: str, known: str) -> bool:
    return known.startswith("*.") and name.endswith(known[1:])


def bearer(connection: HTTPConnection) -> str | None:
    """Return the token of a request: from its headers, never from its URL, which is logged."""
    kind, _, text = connection.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return text.strip()
    key = connection.headers.get("x-api-key")
    if key is None and kind:
        raise TokenRefused("authorization is not of the kind Bearer")
    return key
