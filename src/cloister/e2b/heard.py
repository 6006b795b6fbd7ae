"""What is noticed of a call over E2B's protocol, by the same rules as of the server's own."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace

from starlette.requests import HTTPConnection
from starlette.types import Scope

from cloister.server.endpoint import new_request_id
from cloister.server.observation import Observation
from cloister.server.resident import Resident
from cloister.server.tenancy import TenantName
from cloister.server.tokens import OWNER_CALLER, Caller

_HEARD = "cloister.e2b.heard"
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET")
_WHOLE = re.compile(r"\\(.)")


@dataclass(slots=True)
class Heard:
    """One call: what it is, as it is written here and never as a client wrote it, and whose."""

    path: str = "e2b"
    caller: Caller | None = None
    sandbox: str | None = None
    begun: float = field(default_factory=time.monotonic)


def hear(scope: Scope) -> Heard:
    """Return what is known so far of the call that is being answered."""
    found = scope.get(_HEARD)
    if not isinstance(found, Heard):
        found = scope[_HEARD] = Heard()
    return found


def hear_route(scope: Scope, pattern: re.Pattern[str], caller: Caller) -> None:
    """Note which call of the control API it is, and whose."""
    known = hear(scope)
    known.path = "e2b " + _WHOLE.sub(r"\1", pattern.pattern.replace("([^/]{1,512})", "{}"))
    known.caller = caller


def hear_resident(scope: Scope, resident: Resident, path: str | None) -> None:
    """Note that it is a call to a sandbox: `path` is one that is known there, or None."""
    # Whoever came by the sandbox's own token, or by its address alone, acts for its tenant there.
    hear_tenant(scope, resident.tenant, "port" if path is None else path, "sandbox")
    hear(scope).sandbox = resident.id


def hear_tenant(scope: Scope, tenant: TenantName, path: str, by: str) -> None:
    """Note whose a call is that came with no key, but with something that was made for it."""
    known = hear(scope)
    known.path = f"e2b {path}"
    known.caller = replace(OWNER_CALLER, tenant=tenant, token=by)


def tell(observation: Observation, scope: Scope, status: int) -> None:
    """Note a call that was answered."""
    known = hear(scope)
    method = str(scope.get("method", "WEBSOCKET"))
    observation.note(
        method if method in _METHODS else "OTHER",
        known.path,
        HTTPConnection(scope),
        known.caller,
        status,
        known.begun,
        new_request_id(),
        known.sandbox,
    )
