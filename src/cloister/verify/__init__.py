"""The hostile catalogue: attacks on this machine's own sandboxes, and whether the wall held."""

from __future__ import annotations

from cloister.verify.arena import Arena, Attempt
from cloister.verify.case import CATALOGUE, NOT_TESTABLE, Case, NotApplicable, NotHeld, case
from cloister.verify.cases import load_cases
from cloister.verify.run import Outcome, run_case, run_catalogue

__all__ = [
    "CATALOGUE",
    "NOT_TESTABLE",
    "Arena",
    "Attempt",
    "Case",
    "NotApplicable",
    "NotHeld",
    "Outcome",
    "case",
    "load_cases",
    "run_case",
    "run_catalogue",
]
