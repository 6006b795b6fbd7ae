"""Small programs that go inside a sandbox and try something."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def read_probe(name: str) -> str:
    """Return the source of a probe, to be run by whatever Python the sandbox has."""
    return resources.files(__package__).joinpath(f"{name}.py").read_text(encoding="utf-8")


def assemble(source: str) -> str:
    """Return a program that calls the `attempt` of this source and reports how it ended."""
    # The prelude stands above it, and a file has one place for this line.
    body = source.replace("from __future__ import annotations\n", "")
    return f"{read_probe('prelude')}\n{body}\n_report(attempt)\n"
