"""What a rule says to a request."""

from __future__ import annotations

from enum import StrEnum


class Effect(StrEnum):
    """What a rule says to a request; `ask` holds it until a person answers."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"
