"""How much may leave and come back in the life of one sandbox."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from cloister.errors import RequestError
from cloister.model import format_bytes, parse_bytes, quote
from cloister.policy.effect import Effect

_SIZES = ("bytes_out", "bytes_in")


@dataclass(frozen=True, slots=True, init=False)
class Budget:
    """The most of each; None is no limit. `over` says what happens then: deny, or ask."""

    bytes_out: int | None
    bytes_in: int | None
    requests: int | None
    connections: int | None
    over: Effect

    def __init__(
        self,
        *,
        bytes_out: int | str | None = None,
        bytes_in: int | str | None = None,
        requests: int | None = None,
        connections: int | None = None,
        over: Effect | str = Effect.DENY,
    ) -> None:
        if over not in (Effect.DENY.value, Effect.ASK.value):
            raise RequestError(f"over is {quote(over)}; it may be deny, ask")
        values = {
            "bytes_out": None if bytes_out is None else parse_bytes(bytes_out, "bytes_out"),
            "bytes_in": None if bytes_in is None else parse_bytes(bytes_in, "bytes_in"),
            "requests": None if requests is None else _count(requests, "requests"),
            "connections": None if connections is None else _count(connections, "connections"),
            "over": Effect(over),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def as_dict(self) -> dict[str, Any]:
        """Return it as the table of a policy file."""
        stated = {name: getattr(self, name) for name in BUDGET_KEYS if name != "over"}
        return {
            **{
                name: format_bytes(value) if name in _SIZES else value
                for name, value in stated.items()
                if value is not None
            },
            **({"over": self.over.value} if self.over is not Effect.DENY else {}),
        }


BUDGET_KEYS: tuple[str, ...] = tuple(each.name for each in fields(Budget))


def _count(value: object, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 2**53:
        raise RequestError(f"{field} is {quote(value)}; write a whole number, 0 or more")
    return value
