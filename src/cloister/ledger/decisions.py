"""Entries of decisions: verdicts, secrets used, approvals asked and answered, grants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from cloister.ledger.payload import Payload
from cloister.ledger.text import Text, Texts, readable
from cloister.policy import Effect

Answer = Literal["once", "for_time", "for_sandbox", "deny", "timeout", "cancelled"]


@dataclass(frozen=True, slots=True)
class Judged(Payload):
    """A verdict on anything that is not a connection or a request, such as running as root."""

    kind: ClassVar[str] = "policy.verdict"
    request: Text
    effect: Effect
    rule: Text
    reason: Text
    inputs: Texts

    def flood(self) -> str | None:
        return f"{self.effect.value} {readable(self.rule)}"

    @property
    def is_refusal(self) -> bool:
        return self.effect is Effect.DENY


@dataclass(frozen=True, slots=True)
class Granted(Payload):
    """A rule was added while the sandbox runs."""

    kind: ClassVar[str] = "policy.granted"
    rule: Text
    allows: Text
    who: Text
    reason: Text
    until_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Revoked(Payload):
    """A rule that had been added was taken away before its end."""

    kind: ClassVar[str] = "policy.revoked"
    rule: Text
    who: Text
    reason: Text


@dataclass(frozen=True, slots=True)
class EgressChanged(Payload):
    """What may be reached was replaced while the sandbox runs; `policy` is the new one's digest."""

    kind: ClassVar[str] = "policy.egress"
    policy: Text
    reaches: Texts


@dataclass(frozen=True, slots=True)
class SecretUsed(Payload):
    """A placeholder was replaced by the secret of that name, for that host; never its value."""

    kind: ClassVar[str] = "secret.used"
    name: Text
    host: Text
    place: Text
    request: int | None = None

    def flood(self) -> str | None:
        return readable(self.name)


@dataclass(frozen=True, slots=True)
class SecretBlocked(Payload):
    """A placeholder was sent where its secret is not bound to, and nothing was sent on."""

    kind: ClassVar[str] = "secret.blocked"
    name: Text
    host: Text
    place: Text
    request: int | None = None

    def flood(self) -> str | None:
        return readable(self.name)

    @property
    def is_refusal(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class SecretsRenewed(Payload):
    """Secrets were read from their sources again; those that had no value are withdrawn."""

    kind: ClassVar[str] = "secret.renewed"
    names: Texts
    withdrawn: Texts


@dataclass(frozen=True, slots=True)
class ApprovalAsked(Payload):
    """A person was asked; begins its span. `digest` is of exactly what would be let through."""

    kind: ClassVar[str] = "approval.asked"
    number: int
    what: Text
    digest: Text
    rule: Text
    expires_ns: int
    request: int | None = None


@dataclass(frozen=True, slots=True)
class ApprovalAnswered(Payload):
    """A person answered, or nobody did in time; ends the span of the question."""

    kind: ClassVar[str] = "approval.answered"
    number: int
    answer: Answer
    digest: Text
    who: Text | None = None
    reason: Text | None = None
    until_ns: int | None = None

    @property
    def is_refusal(self) -> bool:
        return self.answer in ("deny", "timeout", "cancelled")
