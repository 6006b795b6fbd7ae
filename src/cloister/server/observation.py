"""What is noticed of each request: a line in the log, a count for Prometheus, a span."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from cloister.ledger import Called, Ledger
from cloister.server.tenancy import TenantName
from cloister.server.tokens import OWNER_CALLER, Caller
from cloister.server.traces import Traces

if TYPE_CHECKING:
    from cloister.server.endpoint import Conversation, Endpoint

log = logging.getLogger("cloister.server.requests")

LINKED_PATH = "/links/{link}/{rest}"
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


@dataclass(frozen=True, slots=True)
class Linked:
    """Whose a signed link is, and to which of its sandboxes it leads."""

    tenant: TenantName
    sandbox: str


class Observation:
    """Counts requests by the path as it is written here: never one that a client chose."""

    def __init__(self, ledger: Ledger | None = None, traces: Traces | None = None) -> None:
        self._ledger = ledger
        self.traces = traces or Traces()
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.durations: Counter[float] = Counter()
        self.duration_sum_s = 0.0

    def request(
        self,
        endpoint: Endpoint,
        request: HTTPConnection,
        caller: Caller | None,
        status: int,
        begun: float,
        id: str,
    ) -> None:
        """Note one request that was answered."""
        self.note(endpoint.method, endpoint.path, request, caller, status, begun, id)

    def websocket(
        self,
        one: Conversation,
        websocket: HTTPConnection,
        caller: Caller | None,
        status: int,
        begun: float,
        id: str,
    ) -> None:
        """Note one WebSocket that was closed."""
        self.note("WEBSOCKET", one.path, websocket, caller, status, begun, id)

    def linked(
        self,
        method: str,
        request: HTTPConnection,
        whose: Linked,
        status: int,
        begun: float,
        id: str,
    ) -> None:
        """Note what was asked by a signed link, and for whom: never the link itself."""
        caller = replace(OWNER_CALLER, tenant=whose.tenant, token="link")  # noqa: S106
        self.note(method, LINKED_PATH, request, caller, status, begun, id, whose.sandbox)

    def note(
        self,
        method: str,
        path: str,
        request: HTTPConnection,
        caller: Caller | None,
        status: int,
        begun: float,
        id: str,
        sandbox: str | None = None,
    ) -> None:
        """Note what was asked, by any protocol; `path` is a word of ours for it."""
        sandbox = sandbox or request.path_params.get("id")
        took_s = time.monotonic() - begun
        self.requests[method, path, status] += 1
        self.duration_sum_s += took_s
        for bucket in BUCKETS_S:
            if took_s <= bucket:
                self.durations[bucket] += 1
        if self._ledger is not None and (method != "GET" or status >= 400):
            self._ledger.write(
                Called(
                    method,
                    path,
                    status,
                    id,
                    None if caller is None else caller.tenant,
                    None if caller is None else caller.token,
                    sandbox,
                )
            )
        if not log.isEnabledFor(logging.INFO):
            return
        # Neither the query nor a header: both may hold what must not be kept.
        log.info(
            "request",
            extra={
                "request": id,
                "method": method,
                "path": path,
                "sandbox": sandbox,
                "status": status,
                "took_ms": round(took_s * 1000, 2),
                "tenant": None if caller is None else caller.tenant,
                "token": None if caller is None else caller.token,
            },
        )
