"""What tests say otherwise of a wall, as tests/expected_skips.toml lists it for users and tests."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import pytest

_EXPECTED_SKIPS = Path(__file__).parent / "expected_skips.toml"


def skip_if_different(node: pytest.Item, runtime: str) -> None:
    """Skip a test that says something else of this runtime, with the reason."""
    reason = differences(runtime).get(node.nodeid.partition("[")[0])
    if reason is not None:
        pytest.skip(reason)


@cache
def differences(runtime: str) -> dict[str, str]:
    """Return the tests that say something else of this runtime, and why."""
    listed = tomllib.loads(_EXPECTED_SKIPS.read_text())["skip"]
    return {
        test: entry["reason"]
        for entry in listed
        if entry["reason"].startswith(f"{runtime}: ")
        for test in entry["tests"]
    }
