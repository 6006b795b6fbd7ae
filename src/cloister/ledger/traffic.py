"""Adds up what went to each host and came from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloister.ledger.crossings import Connected, ConnectionClosed, NameAsked, Requested, Responded
from cloister.ledger.entry import Entry
from cloister.ledger.keeping import Folded
from cloister.ledger.receipt import Reached
from cloister.ledger.text import readable

# Names come from inside and can be made up without end; what is beyond goes under one name.
MOST = 1000
REST = "(others)"
_FOLDED = "(counted in a flood)"
_MOST_OPEN = 100_000


def bounded(known: Mapping[str, Any], name: str) -> str:
    """Return the name, or the one for all the others when there are too many."""
    return name if name in known or len(known) < MOST else REST


@dataclass(slots=True)
class _Flow:
    connections: int = 0
    requests: int = 0
    refused: int = 0
    bytes_out: int = 0
    bytes_in: int = 0


class Traffic:
    """Connections, requests and bytes by host; `unread` are those whose TLS was not opened."""

    def __init__(self) -> None:
        self.unread: set[str] = set()
        self._flows: dict[str, _Flow] = {}
        # Host by span; None for a request whose bytes are in those of its connection.
        self._open: dict[int, str | None] = {}

    def add(self, entry: Entry) -> None:
        """Add an entry, if it is one of traffic."""
        payload = entry.payload
        if isinstance(payload, Connected | Requested):
            self._begin(entry, payload)
        elif isinstance(payload, ConnectionClosed | Responded):
            host = REST if entry.span is None else self._open.pop(entry.span, REST)
            if host is not None:
                flow = self._flow(host)
                flow.bytes_out += payload.bytes_out
                flow.bytes_in += payload.bytes_in

    def _begin(self, entry: Entry, payload: Connected | Requested) -> None:
        host = bounded(self._flows, readable(payload.host))
        flow = self._flow(host)
        flow.refused += payload.is_refusal
        is_within = False
        if isinstance(payload, Requested):
            flow.requests += 1
            is_within = payload.connection is not None
        else:
            flow.connections += 1
            if payload.protocol == "tls" and not payload.intercepted and not payload.is_refusal:
                self.unread.add(host)
        if len(self._open) < _MOST_OPEN:
            self._open[entry.sequence] = None if is_within else host

    def add_folded(self, payload: Folded) -> None:
        """Add what was only counted."""
        of = readable(payload.of)
        if of.startswith("egress.") and of != NameAsked.kind:
            flow = self._flow(_FOLDED)
            flow.connections += payload.count * (of == Connected.kind)
            flow.requests += payload.count * (of == Requested.kind)
            flow.refused += payload.refusals
            flow.bytes_out += payload.bytes_out
            flow.bytes_in += payload.bytes_in

    def hosts(self) -> tuple[Reached, ...]:
        """Return the sums, by name."""
        return tuple(
            Reached(
                host,
                flow.connections,
                flow.requests,
                flow.refused,
                flow.bytes_out,
                flow.bytes_in,
            )
            for host, flow in sorted(self._flows.items())
        )

    def _flow(self, host: str) -> _Flow:
        return self._flows.setdefault(host, _Flow())
