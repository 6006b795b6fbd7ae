"""A pytest plugin that gives each Hypothesis property as many inputs as `make fuzz` wants."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fuzz",
    max_examples=int(os.environ["CLOISTER_FUZZ_EXAMPLES"]),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fuzz")
