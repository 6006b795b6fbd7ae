"""Keeps what the gateway tells of one sandbox, as much of it as is reasonable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from cloister.model.traffic import Traffic, TrafficEvent

_MOST = 10_000


class Listener(Protocol):
    """Who else is told of every event, such as a ledger."""

    def add(self, told: Mapping[str, Any]) -> None:
        """The gateway has told this."""

    def begin(self) -> None:
        """A gateway begins to serve."""

    def lose(self, count: int) -> None:
        """Events have been lost on the way."""


class TrafficLog:
    """The events of one sandbox, the same ones counted instead of repeated."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._events: list[TrafficEvent] = []
        self._alike: dict[tuple[object, ...], int] = {}
        self._open: dict[int, int] = {}
        self._lost = 0
        # Addresses that stand for names inside; another gateway must give no other ones.
        self.book: dict[str, str] = {}
        # Of its budget; another gateway must count on from there.
        self.used: dict[str, int] = {}
        self.listener: Listener | None = None
        # And who watches beside the ledger.
        self.witness: Listener | None = None

    def traffic(self) -> Traffic:
        """Return what is known now."""
        return Traffic(tuple(self._events), self._lost)

    def lose(self, count: int) -> None:
        """Events have been lost on the way."""
        self._lost += count
        for each in self._told():
            each.lose(count)

    def begin(self) -> None:
        """It is served anew: what was open before is over."""
        for at in self._open.values():
            self._events[at] = replace(
                self._events[at], is_open=False, error="cut off in the middle"
            )
        self._open.clear()
        for each in self._told():
            each.begin()

    def add(self, event: Mapping[str, Any]) -> None:
        """Add what the gateway has told."""
        for each in self._told():
            each.add(event)
        kind = event.get("kind")
        if kind in ("closed", "answered"):
            self._close(event)
        elif kind in ("name", "connection", "request", "packet"):
            self._add(event)
        elif kind not in ("secret", "limit"):
            self._lost += 1

    def _told(self) -> list[Listener]:
        return [each for each in (self.listener, self.witness) if each is not None]

    def _add(self, told: Mapping[str, Any]) -> None:
        number = told.get("id")
        event = TrafficEvent(
            at=float(told["at"]),
            kind=told["kind"],
            protocol=str(told["protocol"]),
            host=str(told["host"]),
            port=None if told["port"] is None else int(told["port"]),
            allowed=told["allowed"] is True,
            rule=str(told["rule"]),
            reason=str(told["reason"]),
            address=None if told.get("address") is None else str(told["address"]),
            is_open=isinstance(number, int),
            method=_text(told.get("method")),
            path=_text(told.get("path")),
        )
        key = (
            *(event.kind, event.protocol, event.host, event.port, event.allowed, event.reason),
            *(event.method, event.path),
        )
        if not event.is_open and key in self._alike:
            at = self._alike[key]
            self._events[at] = replace(self._events[at], count=self._events[at].count + 1)
            return
        if len(self._events) >= self._most:
            self._lost += 1
            return
        if isinstance(number, int):
            self._open[number] = len(self._events)
        else:
            self._alike[key] = len(self._events)
        self._events.append(event)

    def _close(self, told: Mapping[str, Any]) -> None:
        at = self._open.pop(int(told["id"]), None)
        if at is not None:
            self._events[at] = replace(
                self._events[at],
                protocol=str(told.get("protocol", self._events[at].protocol)),
                bytes_out=int(told["bytes_out"]),
                bytes_in=int(told["bytes_in"]),
                error=None if told["error"] is None else str(told["error"]),
                is_open=False,
                status=None if told.get("status") is None else int(told["status"]),
            )


def _text(value: object) -> str | None:
    return None if value is None else str(value)
