"""Take turns between contenders and sum up what each of them took."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

Turn = Callable[[], Awaitable[float]]
"""One measurement: does the work and returns what it cost."""

# A contender this slow, and this many times slower than we are, sits out most rounds.
SLOW_TURN_S = 0.05
SLOW_TIMES = 4


class NotMeasurable(Exception):
    """A row or a peer cannot be measured here; the text says why."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The median of the turns, and how far they spread."""

    median: float
    quartile_low: float
    quartile_high: float
    turns: int

    def as_dict(self) -> dict[str, float | int]:
        return {
            "median": self.median,
            "q1": self.quartile_low,
            "q3": self.quartile_high,
            "iqr": self.quartile_high - self.quartile_low,
            "turns": self.turns,
        }


@dataclass(frozen=True, slots=True)
class Contest:
    """What each contender took, and why those who dropped out did."""

    summaries: Mapping[str, Summary]
    dropped: Mapping[str, str]


async def take_turns(
    contenders: Mapping[str, Turn], rounds: int, *, least_turns: int = 3
) -> Contest:
    """Measure in rounds, so that whatever else the machine does hits all contenders alike.

    The order within a round is drawn anew, from a fixed seed: no one always comes after the
    same one.

    Each contender warms up with one turn that is not counted; "ours" comes first. A slow one
    sits out most rounds, or it would leave the quick ones too few, but has `least_turns`. A peer
    that fails drops out with its reason; if we fail, there is nothing to compare and the failure
    goes up.
    """
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    sits_out: dict[str, int] = {}
    dropped: dict[str, str] = {}
    slow_s = SLOW_TURN_S
    order = list(contenders.items())
    draw = random.Random(0)
    for round_number in range(-1, rounds):
        if round_number >= 0:
            draw.shuffle(order)
        for name, turn in order:
            if name in dropped or round_number % sits_out.get(name, 1) != 0:
                continue
            began = time.perf_counter()
            try:
                value = await turn()
            except NotMeasurable as reason:
                if name == "ours":
                    raise
                dropped[name] = str(reason)
                continue
            if round_number < 0:
                turn_s = time.perf_counter() - began
                if name == "ours":
                    slow_s = max(SLOW_TURN_S, SLOW_TIMES * turn_s)
                sits_out[name] = min(max(1, int(turn_s / slow_s)), max(1, rounds // least_turns))
            else:
                taken[name].append(value)
    kept = {name: summarise(values) for name, values in taken.items() if name not in dropped}
    return Contest(kept, dropped)


def summarise(values: list[float]) -> Summary:
    if len(values) < 2:
        return Summary(values[0], values[0], values[0], len(values))
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Summary(middle, low, high, len(values))


def timed_ms(
    work: Callable[[], Awaitable[object]], then: Callable[[], Awaitable[None]] | None = None
) -> Turn:
    """A turn that measures the wall time of `work` in milliseconds.

    What is done `then` is not measured: it keeps work that goes on afterwards out of the turns of
    others.
    """

    async def turn() -> float:
        began = time.perf_counter()
        await work()
        took_ms = (time.perf_counter() - began) * 1000
        if then is not None:
            await then()
        return took_ms

    return turn
