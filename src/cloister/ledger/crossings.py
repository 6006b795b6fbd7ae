"""Entries of what crosses the boundary: names asked, connections, requests and their answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from cloister.ledger.payload import Payload
from cloister.ledger.text import Text, Texts, readable
from cloister.policy import Effect


def _flood(effect: Effect, rule: Text) -> str:
    return f"{effect.value} {readable(rule)}"


@dataclass(frozen=True, slots=True)
class NameAsked(Payload):
    """A name was looked up; `answers` is what the sandbox was told."""

    kind: ClassVar[str] = "egress.name"
    name: Text
    record: Text
    effect: Effect
    rule: Text
    answers: Texts = ()

    def flood(self) -> str | None:
        return _flood(self.effect, self.rule)

    @property
    def is_refusal(self) -> bool:
        return self.effect is Effect.DENY


@dataclass(frozen=True, slots=True)
class Connected(Payload):
    """A connection was judged, and dialled if allowed; begins its span.

    `inputs` is everything the verdict was made from, as "name=value": what a later judge of
    another policy needs. `address` is the one that was checked and is dialled.
    """

    kind: ClassVar[str] = "egress.connect"
    host: Text
    port: int
    protocol: Literal["tcp", "tls", "http", "socks", "udp", "other"]
    effect: Effect
    rule: Text
    reason: Text
    inputs: Texts
    address: Text | None = None
    intercepted: bool = False

    def flood(self) -> str | None:
        return _flood(self.effect, self.rule)

    @property
    def is_refusal(self) -> bool:
        return self.effect is Effect.DENY


@dataclass(frozen=True, slots=True)
class ConnectionClosed(Payload):
    """A connection is over; ends the span of `Connected`. Bytes are of the sandbox's side."""

    kind: ClassVar[str] = "egress.closed"
    bytes_out: int
    bytes_in: int
    error: Text | None = None


@dataclass(frozen=True, slots=True)
class Requested(Payload):
    """A request was judged, before any of it is sent on; begins its span.

    `connection` is the span of the connection it came by. `target` is path and query as sent.
    """

    kind: ClassVar[str] = "egress.request"
    method: Text
    scheme: Literal["http", "https"]
    host: Text
    port: int
    target: Text
    effect: Effect
    rule: Text
    reason: Text
    inputs: Texts
    connection: int | None = None

    def flood(self) -> str | None:
        return _flood(self.effect, self.rule)

    @property
    def is_refusal(self) -> bool:
        return self.effect is Effect.DENY


@dataclass(frozen=True, slots=True)
class Responded(Payload):
    """A request is over; ends the span of `Requested`.

    The digests are SHA-256 of the bodies as they were on the wire; `error` says what broke.
    """

    kind: ClassVar[str] = "egress.response"
    bytes_out: int
    bytes_in: int
    status: int | None = None
    request_digest: Text | None = None
    response_digest: Text | None = None
    error: Text | None = None
