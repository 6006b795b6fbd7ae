"""Random frames from a guest that was replaced: no caller waits for ever, nothing escapes."""

from __future__ import annotations

import pytest

from cloister.verify.cases.agt_impostor import fuzz
from cloister.verify.impostor import no_alarms, resident_bytes

MIB = 1024 * 1024


async def test_a_few_thousand_random_frames_are_survived() -> None:
    async with no_alarms():
        assert await fuzz(seed=7, connections=80, frames=50) == 4000


@pytest.mark.soak
async def test_a_million_random_frames_are_survived_in_bounded_memory() -> None:
    before = resident_bytes()
    async with no_alarms():
        for seed in range(400):
            await fuzz(seed=seed, connections=50, frames=50)
    assert resident_bytes() - before < 64 * MIB
