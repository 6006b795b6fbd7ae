"""For every test: who runs it, no skip that is not on the list, a state directory of its own."""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from cloister.runtime.namespace.ids import find_sub_ids

SINGLE_ID = "a sandbox with a single id has no other user to become"
NOT_OWNED = "without root the host's programs belong to nobody inside, and cannot be changed"

_EXPECTED_SKIPS = Path(__file__).parent / "expected_skips.toml"

# `make fuzz` brings a profile of its own, which must stay in force.
if "CLOISTER_FUZZ_EXAMPLES" not in os.environ:
    settings.register_profile("cloister", deadline=None)
    settings.load_profile("cloister")


_STATE = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep what tests keep away from what the person who runs them keeps."""
    place = tempfile.TemporaryDirectory(prefix="cloister-state-", ignore_cleanup_errors=True)
    config.stash[_STATE] = place
    os.environ["CLOISTER_STATE"] = place.name


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing of it."""
    config.stash[_STATE].cleanup()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip nobody agreed to into a failure: what did not run has not held."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        _require_expected(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a file that skips itself while it is being read."""
    report = yield
    if report.skipped:
        _require_expected(report)
    return report


def _require_expected(report: pytest.TestReport | pytest.CollectReport) -> None:
    _, _, words = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, "")
    reason = words.removeprefix("Skipped: ")
    test = report.nodeid.partition("[")[0]
    expected = _expected_skips()
    if test not in expected.get(reason, ()) and test not in expected.get(_ANY_REASON, ()):
        report.outcome = "failed"
        report.longrepr = (
            f"{test} was skipped, and tests/expected_skips.toml does not list it "
            f"under the reason {reason!r}"
        )


@cache
def _expected_skips() -> dict[str, frozenset[str]]:
    listed = tomllib.loads(_EXPECTED_SKIPS.read_text())["skip"]
    return {entry["reason"]: frozenset(entry["tests"]) for entry in listed}


# For a test that holds its own reasons against a list of its own before it skips.
_ANY_REASON = "one that the test itself has found on its own list"


@pytest.fixture(scope="session")
def host() -> str:
    """Who we are here: "root", a user with "ranges" of sub-ids, or one with a "single" id."""
    if os.geteuid() == 0:
        return "root"
    return "single" if find_sub_ids() is None else "ranges"


@pytest.fixture
def several_ids(host: str) -> None:
    """Asked for by tests in which somebody becomes another user."""
    if host == "single":
        pytest.skip(SINGLE_ID)


@pytest.fixture
def owned_programs(host: str) -> None:
    """Asked for by tests that change the host's programs on their own layer."""
    if host != "root":
        pytest.skip(NOT_OWNED)
