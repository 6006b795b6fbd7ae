"""Inspect's own check of a provider, every test of it."""

from __future__ import annotations

import types

import pytest
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.self_check import *  # noqa: F403


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at once: where a check waits for processes to be cleaned up, here they are gone."""

    async def look_at_once(seconds: float) -> None:
        return None

    monkeypatch.setattr(self_check, "anyio", types.SimpleNamespace(sleep=look_at_once))


def test_the_whole_check_is_here() -> None:
    checks = {name for name in vars(self_check) if name.startswith("test_")}
    assert len(checks) >= 44
    assert checks <= set(globals())
