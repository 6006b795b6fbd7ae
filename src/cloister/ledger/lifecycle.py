"""Entries of a sandbox's life: planned, launched, paused, snapshot, forked, rewound, stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cloister.ledger.payload import Payload, Spent
from cloister.ledger.text import Text, Texts, readable


@dataclass(frozen=True, slots=True)
class Planned(Payload):
    """A sandbox is about to be built; begins its span. Digests are written as they are named."""

    kind: ClassVar[str] = "sandbox.planned"
    plan: Text
    policy: Text
    runtime: Text
    image: Text | None = None
    snapshot: Text | None = None
    label: Text | None = None


@dataclass(frozen=True, slots=True)
class Launched(Payload):
    """The wall stands; `posture` is what the kernel said of it, `unseen` what nobody can see.

    `unseen` holds whole sentences; the receipt repeats them as its coverage statement.
    """

    kind: ClassVar[str] = "sandbox.launched"
    plan: Text
    policy: Text
    posture: Texts
    unseen: Texts
    image: Text | None = None


@dataclass(frozen=True, slots=True)
class NotLaunched(Payload):
    """A step of building the wall did not apply, and nothing ran; ends the span of `Planned`."""

    kind: ClassVar[str] = "sandbox.not_launched"
    step: Text
    reason: Text


@dataclass(frozen=True, slots=True)
class Paused(Payload):
    """Every process inside was stopped."""

    kind: ClassVar[str] = "sandbox.paused"


@dataclass(frozen=True, slots=True)
class Resumed(Payload):
    """Every process inside goes on."""

    kind: ClassVar[str] = "sandbox.resumed"


@dataclass(frozen=True, slots=True)
class Promoted(Payload):
    """What is kept stands behind a wall for another trust from now on."""

    kind: ClassVar[str] = "sandbox.promoted"
    trust_before: Text
    trust: Text
    runtime: Text


@dataclass(frozen=True, slots=True)
class SnapshotTaken(Payload):
    """The disk was saved under an id; `step` is the run it belongs to."""

    kind: ClassVar[str] = "sandbox.snapshot"
    snapshot: Text
    method: Text
    name: Text | None = None
    parent: Text | None = None
    digest: Text | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Forked(Payload):
    """A sandbox was started from a snapshot; written in the ledgers of both."""

    kind: ClassVar[str] = "sandbox.fork"
    snapshot: Text
    parent: Text
    child: Text


@dataclass(frozen=True, slots=True)
class Rewound(Payload):
    """The disk was set back to a snapshot; what ran on the newer one was ended."""

    kind: ClassVar[str] = "sandbox.rewind"
    snapshot: Text
    left: Text | None = None


@dataclass(frozen=True, slots=True)
class Stopped(Payload):
    """Nothing of the sandbox is left; ends the span of `Planned`."""

    kind: ClassVar[str] = "sandbox.stopped"
    reason: Text
    usage: Spent | None = None


@dataclass(frozen=True, slots=True)
class LimitHit(Payload):
    """A limit was reached; `value` is the limit, in its own unit, `count` how often."""

    kind: ClassVar[str] = "limit.hit"
    limit: Text
    value: int | None = None
    count: int = 1

    def flood(self) -> str | None:
        return readable(self.limit)
