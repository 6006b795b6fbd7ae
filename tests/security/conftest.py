"""What the attacks on a real sandbox share."""

from __future__ import annotations

import pytest

from cloister.verify import Arena
from cloister.verify.canary import Canary


@pytest.fixture
async def arena() -> Arena:
    """A place to run probes in, without canaries planted."""
    return Arena(Canary())
