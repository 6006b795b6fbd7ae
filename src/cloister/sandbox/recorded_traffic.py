"""Writes into the ledger what the gateway tells of a sandbox: names, connections, refusals."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

from cloister.ledger import (
    Connected,
    ConnectionClosed,
    Ledger,
    LimitHit,
    NameAsked,
    Requested,
    Responded,
    SecretBlocked,
    SecretUsed,
    Span,
    facts,
)
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
    "what is said in TLS is passed through unread, but to hosts with rules on requests or secrets"
)


class Crossings:
    """What crosses the boundary of one sandbox."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._open: dict[int, Span] = {}
        self._requests: set[int] = set()
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
            case "request":
                self._request(told)
            case "answered":
                self._end(int(told["id"]), _responded(told))
            case "secret":
                self._secret(told)
            case "limit":
                self._ledger.write(LimitHit(str(told["limit"]), int(told["value"])))
            case "closed":
                error = None if told["error"] is None else str(told["error"])
                closed = ConnectionClosed(int(told["bytes_out"]), int(told["bytes_in"]), error)
                self._end(int(told["id"]), closed)

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
            intercepted=told.get("intercepted") is True,
        )
        self._begin(told, connected)

    def _request(self, told: Mapping[str, Any]) -> None:
        names = ("method", "host", "port", "path")
        requested = Requested(
            method=str(told["method"]),
            scheme="https" if told["protocol"] == "https" else "http",
            host=str(told["host"]),
            port=int(told["port"]),
            target=str(told["path"]),
            effect=_effect(told),
            rule=str(told["rule"]),
            reason=str(told["reason"]),
            inputs=facts({name: told[name] for name in names}),
            connection=self._sequence(told.get("connection")),
        )
        self._begin(told, requested)

    def _secret(self, told: Mapping[str, Any]) -> None:
        kind = SecretUsed if told["what"] == "used" else SecretBlocked
        request = self._sequence(told.get("request"))
        place = str(told["place"])
        self._ledger.write(kind(str(told["name"]), str(told["host"]), place, request))

    def _sequence(self, number: object) -> int | None:
        """Return where in the ledger something that is open begins."""
        span = self._open.get(number) if isinstance(number, int) else None
        return None if span is None else span.sequence

    def _begin(self, told: Mapping[str, Any], begun: Connected | Requested) -> None:
        number = told.get("id")
        if not isinstance(number, int):
            self._ledger.write(begun)
            return
        self._open[number] = self._ledger.begin(begun)
        if isinstance(begun, Requested):
            self._requests.add(number)

    def _end(self, number: int, ended: ConnectionClosed | Responded) -> None:
        span = self._open.pop(number, None)
        self._requests.discard(number)
        if span is not None:
            self._ledger.end(span, ended)

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
            kind = Responded if number in self._requests else ConnectionClosed
            self._end(number, kind(0, 0, error=why))

    def lose(self, count: int) -> None:
        """Events were lost on the way."""
        if self._is_over:
            return
        now_ns = time.time_ns()
        self._ledger.write(Lost(count, now_ns, now_ns, "the gateway told more than was taken"))


def _responded(told: Mapping[str, Any]) -> Responded:
    def text(name: str) -> str | None:
        return None if told.get(name) is None else str(told[name])

    return Responded(
        int(told["bytes_out"]),
        int(told["bytes_in"]),
        None if told.get("status") is None else int(told["status"]),
        text("request_digest"),
        text("response_digest"),
        text("error"),
    )


def _effect(told: Mapping[str, Any]) -> Effect:
    return Effect.ALLOW if told["allowed"] is True else Effect.DENY
