"""One line of the result: what was measured, beside what, and whether the bar holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from benches.measure import Contest, Summary


class Bar(StrEnum):
    """Which figure the bar is laid on, and which side of it is good."""

    RATIO_AT_MOST = "ratio at most"
    RATIO_AT_LEAST = "ratio at least"
    OURS_AT_MOST = "ours at most"
    OURS_AT_LEAST = "ours at least"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of ours, the peer's for the same work in the same run, and the bar."""

    name: str
    unit: str
    ours: float | None = None
    peer_name: str | None = None
    peer: float | None = None
    kind: Bar = Bar.NONE
    bar: float | None = None
    why: str | None = None
    failed: bool = False
    spread: Mapping[str, Summary] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, float | int | str] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        if self.ours is None or not self.peer:
            return None
        return self.ours / self.peer

    @property
    def holds(self) -> bool | None:
        """None when nothing was measured or nothing is asked."""
        if self.failed:
            return False
        on_ratio = self.kind in (Bar.RATIO_AT_MOST, Bar.RATIO_AT_LEAST)
        figure = self.ratio if on_ratio else self.ours
        if figure is None or self.bar is None or self.why is not None:
            return None
        if self.kind in (Bar.RATIO_AT_MOST, Bar.OURS_AT_MOST):
            return figure <= self.bar
        return figure >= self.bar

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ours": self.ours,
            "peer": self.peer,
            "peer_name": self.peer_name,
            "ratio": self.ratio,
            "bar": self.bar,
            "bar_kind": str(self.kind),
            "holds": self.holds,
            "unit": self.unit,
            "why": self.why,
            "spread": {name: summary.as_dict() for name, summary in self.spread.items()},
            "peers": {
                name: summary.median for name, summary in self.spread.items() if name != "ours"
            },
            "absent": dict(self.absent),
            "facts": dict(self.facts),
        }


def row_against(
    name: str,
    unit: str,
    contest: Contest,
    peer_name: str,
    kind: Bar,
    bar: float,
    absent: Mapping[str, str],
) -> Row:
    """A row whose ratio is that of two medians of the same run."""
    summaries, absent = contest.summaries, {**absent, **contest.dropped}
    why = None
    if peer_name not in summaries:
        why = f"{peer_name} cannot be measured: {absent.get(peer_name, 'it was not asked')}"
    return Row(
        name=name,
        unit=unit,
        ours=summaries["ours"].median,
        peer_name=peer_name,
        peer=summaries[peer_name].median if peer_name in summaries else None,
        kind=kind,
        bar=bar,
        why=why,
        spread=summaries,
        absent=absent,
    )
