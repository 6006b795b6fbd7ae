"""Runs the hostile catalogue and says of each case whether the wall held."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import Literal

from cloister.verify.arena import Arena
from cloister.verify.canary import Canary
from cloister.verify.case import CATALOGUE, NOT_TESTABLE, Case, NotApplicable, NotHeld, Severity
from cloister.verify.cases import load_cases
from cloister.verify.resources import wait_baseline, wait_settled

__all__ = [
    "HELD",
    "NOT_APPLICABLE",
    "NOT_HELD",
    "NOT_TESTABLE",
    "Outcome",
    "run_case",
    "run_catalogue",
]

Verdict = Literal["held", "NOT HELD", "not applicable"]
HELD: Verdict = "held"
NOT_HELD: Verdict = "NOT HELD"
NOT_APPLICABLE: Verdict = "not applicable"

_CASE_S = 90.0
# Where there is no KVM everything inside takes ten times as long, and a first start boots; gVisor
# is as slow where the host is busy.
_OWN_KERNEL_CASE_S = 600.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one case; `detail` is empty when the wall held."""

    id: str
    title: str
    severity: Severity
    area: str
    verdict: Verdict
    detail: str
    seconds: float


async def run_catalogue(
    only: Collection[str] | None = None,
    areas: Collection[str] | None = None,
    runtime: str | None = None,
) -> AsyncIterator[Outcome]:
    """Run every case, or those named, or those of some areas, one after the other.

    `runtime` is the wall that is attacked.
    """
    load_cases()
    for case in sorted(CATALOGUE, key=lambda case: case.id):
        if (only is None or case.id in only) and (areas is None or case.area in areas):
            yield await run_case(case, runtime)


async def run_case(case: Case, runtime: str | None = None) -> Outcome:
    """Run one case, behind the wall that is named.

    It never raises: what goes wrong is a wall that was not shown to hold.
    """
    begun = time.monotonic()
    within_s = _OWN_KERNEL_CASE_S if runtime in ("gvisor", "microvm") else _CASE_S
    try:
        async with asyncio.timeout(within_s):
            problems = await _attack(case, runtime)
        verdict, detail = (NOT_HELD, "; ".join(problems)) if problems else (HELD, "")
    except NotApplicable as reason:
        verdict, detail = NOT_APPLICABLE, str(reason)
    except NotHeld as reason:
        verdict, detail = NOT_HELD, str(reason)
    except TimeoutError:
        verdict, detail = NOT_HELD, f"the case did not end within {within_s:.0f} s"
    except Exception as error:
        verdict, detail = NOT_HELD, f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - begun
    return Outcome(case.id, case.title, case.severity, case.area, verdict, detail, seconds)


async def _attack(case: Case, runtime: str | None) -> list[str]:
    """Return everything that is wrong after the case; its own assertion raises by itself."""
    canary = Canary()
    arena = Arena(canary, runtime)
    try:
        await canary.plant()
        baseline = await wait_baseline()
        problems = []
        try:
            await case.attack(arena)
        except NotHeld as reason:
            problems.append(str(reason))
        problems += await canary.fired()
        for output in arena.outputs:
            problems += [f"the secret of the {name} came out" for name in canary.leaks(output)]
        if runtime == "microvm":
            # A node holds what machines begin from as long as it is there; what stays is counted.
            await arena.fresh_launcher()
        left = await wait_settled(baseline)
        return problems + [f"left behind: {what}" for what in left]
    finally:
        await canary.remove()
