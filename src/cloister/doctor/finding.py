"""One thing the doctor found out, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """`missing` costs a wall or a limit; `advice` would make a good host better, no more."""

    OK = "ok"
    MISSING = "missing"
    ADVICE = "advice"


@dataclass(frozen=True, slots=True)
class Finding:
    """One claim about this host: what it is about, how it stands, and the way to change it."""

    name: str
    state: State
    detail: str
    fix: str | None = None


def ok(name: str, detail: str) -> Finding:
    """Return the finding that something works."""
    return Finding(name, State.OK, detail)


def missing(name: str, detail: str, fix: str | None = None) -> Finding:
    """Return the finding that something cannot be had here."""
    return Finding(name, State.MISSING, detail, fix)


def advice(name: str, detail: str, fix: str) -> Finding:
    """Return the finding that something could be better."""
    return Finding(name, State.ADVICE, detail, fix)
