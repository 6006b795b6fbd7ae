"""What a sandbox asked of the network, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class TrafficEvent:
    """A name that was asked for, a connection, a request in it, or a packet that was refused.

    `protocol` is "tls", "http" or "tcp" of a connection, "https" or "http" of a request, the kind
    of record of a name ("A"), and what a packet was ("udp"). `address` is the one that was
    dialled. `count` is how often the very same was asked or refused; `at` is when it was first, in
    seconds since 1970. Bytes are those the program sent and was sent, of a request those of its
    bodies; while `is_open` they are not known yet.
    """

    at: float
    kind: Literal["name", "connection", "request", "packet"]
    protocol: str
    host: str
    port: int | None
    allowed: bool
    rule: str
    reason: str
    address: str | None = None
    count: int = 1
    bytes_out: int = 0
    bytes_in: int = 0
    is_open: bool = False
    error: str | None = None
    method: str | None = None
    path: str | None = None
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """All that was seen, in order; `lost` is how many more there were."""

    events: tuple[TrafficEvent, ...] = ()
    lost: int = 0

    @property
    def asked(self) -> tuple[TrafficEvent, ...]:
        """The names that were asked for, allowed or not."""
        return tuple(event for event in self.events if event.kind == "name")

    @property
    def reached(self) -> tuple[TrafficEvent, ...]:
        """The connections that were allowed; `error` says which of them came to nothing."""
        return tuple(event for event in self.events if event.kind == "connection" and event.allowed)

    @property
    def requests(self) -> tuple[TrafficEvent, ...]:
        """The requests that were read and allowed, with what they were answered."""
        return tuple(event for event in self.events if event.kind == "request" and event.allowed)

    @property
    def denied(self) -> tuple[TrafficEvent, ...]:
        """Everything that was denied: names, connections, requests, packets."""
        return tuple(event for event in self.events if not event.allowed)
