"""Writes into the ledger what the gateway tells of a sandbox: names, connections, refusals."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

from cloister.ledger import Connected, ConnectionClosed, Ledger, NameAsked, Span, facts
from cloister.ledger.keeping import Lost
from cloister.policy import Effect

_Protocol = Literal["tcp", "tls", "http", "socks", "udp", "other"]
_PROTOCOLS: dict[str, _Protocol] = {
    "tcp": "tcp",
    "tls": "tls",
    "http": "http",
    "socks": "socks",
    "udp": "udp",
}

UNSEEN = (
    "names and connections are written when the gateway tells of them, a moment after its verdict; "
    "what is said in TLS is passed through unread"
)


class Crossings:
    """What crosses the boundary of one sandbox."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._open: dict[int, Span] = {}
        self._is_over = False

    def add(self, told: Mapping[str, Any]) -> None:
        """Write what the gateway has told."""
        if self._is_over:
            return
        match told.get("kind"):
            case "name":
                self._ledger.write(
                    NameAsked(
                        str(told["host"]), str(told["protocol"]), _effect(told), str(told["rule"])
                    )
                )
            case "connection" | "packet":
                self._connect(told)
            case "closed":
                error = None if told["error"] is None else str(told["error"])
                self._close(
                    int(told["id"]),
                    ConnectionClosed(int(told["bytes_out"]), int(told["bytes_in"]), error),
                )

    def _connect(self, told: Mapping[str, Any]) -> None:
        names = ("host", "port", "protocol")
        connected = Connected(
            host=str(told["host"]),
            port=int(told["port"] or 0),
            protocol=_PROTOCOLS.get(str(told["protocol"]), "other"),
            effect=_effect(told),
            rule=str(told["rule"]),
            reason=str(told["reason"]),
            inputs=facts({name: told[name] for name in names}),
            address=None if told.get("address") is None else str(told["address"]),
        )
        number = told.get("id")
        if isinstance(number, int):
            self._open[number] = self._ledger.begin(connected)
        else:
            self._ledger.write(connected)

    def _close(self, number: int, closed: ConnectionClosed) -> None:
        span = self._open.pop(number, None)
        if span is not None:
            self._ledger.end(span, closed)

    def begin(self) -> None:
        """Another gateway serves: what the last one had open is over."""
        self._end_all("the gateway ended in the middle of it")

    def close(self) -> None:
        """The sandbox is gone; whatever is told from here on comes too late."""
        self._end_all("the sandbox ended")
        self._is_over = True

    def _end_all(self, why: str) -> None:
        # How much of each went through, nobody has told.
        for number in list(self._open):
            self._close(number, ConnectionClosed(0, 0, why))

    def lose(self, count: int) -> None:
        """Events were lost on the way."""
        if self._is_over:
            return
        now_ns = time.time_ns()
        self._ledger.write(Lost(count, now_ns, now_ns, "the gateway told more than was taken"))


def _effect(told: Mapping[str, Any]) -> Effect:
    return Effect.ALLOW if told["allowed"] is True else Effect.DENY
