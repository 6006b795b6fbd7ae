"""The hostile catalogue's entries: what is tried, how bad it would be, and the verdict words."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cloister.errors import CloisterError

if TYPE_CHECKING:
    from cloister.verify.arena import Arena

Severity = Literal["critical", "high", "medium", "low"]
Attack = Callable[["Arena"], Awaitable[None]]

_ID = re.compile(r"([A-Z]{3})-(\d{2})")


class NotHeld(CloisterError):
    """The wall did not hold, or the case could not show that it did."""


class NotApplicable(CloisterError):
    """This case cannot be tried on this host; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Case:
    """One attempt of the catalogue."""

    id: str
    title: str
    severity: Severity
    attack: Attack

    @property
    def area(self) -> str:
        """The three letters before the number."""
        return self.id.partition("-")[0]


CATALOGUE: list[Case] = []
NOT_TESTABLE: dict[str, str] = {}


def case(id: str, title: str, severity: Severity) -> Callable[[Attack], Attack]:
    """Register an attack: it returns when the wall held, and raises NotHeld when it did not."""
    _require_new(id)

    def register(attack: Attack) -> Attack:
        CATALOGUE.append(Case(id, title, severity, attack))
        return attack

    return register


def not_testable(id: str, reason: str) -> None:
    """Say why an id of the catalogue has no case."""
    _require_new(id)
    NOT_TESTABLE[id] = reason


def _require_new(id: str) -> None:
    if _ID.fullmatch(id) is None:
        raise ValueError(f'"{id}" is not a case id; use three letters, a dash and two digits')
    if id in NOT_TESTABLE or any(known.id == id for known in CATALOGUE):
        raise ValueError(f"{id} is in the catalogue already")
