"""Every attack of the hostile catalogue is tried here, and the wall must hold."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from cloister.verify import CATALOGUE, NOT_TESTABLE, Case, load_cases, run_case

HERE = Path(__file__).parent
load_cases()

pytestmark = pytest.mark.security


def expected_not_applicable() -> dict[str, str]:
    return tomllib.loads((HERE / "expected_not_applicable.toml").read_text())


def listed() -> dict[str, str]:
    lines = (HERE / "catalogue_ids.txt").read_text().splitlines()
    return {id: severity for id, severity in (line.split() for line in lines)}


@pytest.mark.parametrize(
    "case", sorted(CATALOGUE, key=lambda case: case.id), ids=lambda case: case.id
)
async def test_the_wall_holds(case: Case) -> None:
    outcome = await run_case(case)
    if outcome.verdict == "not applicable":
        reason = expected_not_applicable().get(case.id)
        assert reason is not None, f"{case.id} was not tried: {outcome.detail}"
        assert reason in outcome.detail, f"{case.id}: {outcome.detail}"
        pytest.skip(outcome.detail)
    assert outcome.verdict == "held", f"{case.title}: {outcome.detail}"


def test_every_listed_attack_is_tried_or_says_why_not() -> None:
    known = {case.id for case in CATALOGUE} | set(NOT_TESTABLE)
    assert not set(listed()) - known, "listed, and neither tried nor explained"


def test_nothing_is_tried_that_is_not_listed() -> None:
    assert not ({case.id for case in CATALOGUE} | set(NOT_TESTABLE)) - set(listed())


def test_a_case_is_as_severe_as_the_list_says() -> None:
    severities = listed()
    assert not [case.id for case in CATALOGUE if severities.get(case.id) != case.severity]


def test_every_expected_skip_belongs_to_a_case() -> None:
    assert not set(expected_not_applicable()) - {case.id for case in CATALOGUE}
