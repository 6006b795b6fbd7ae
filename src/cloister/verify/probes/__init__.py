"""Small programs that go inside a sandbox and try something."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def read_probe(name: str) -> str:
    """Return the source of a probe, to be run by whatever Python the sandbox has."""
    return resources.files(__package__).joinpath(f"{name}.py").read_text(encoding="utf-8")
