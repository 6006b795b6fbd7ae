"""What the tests of modules share: the modules, compiled from text once, and sandboxes for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import wasmtime

from cloister import Sandbox

HERE = Path(__file__).parent

Module = Callable[[str], bytes]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.contract)


@cache
def assembled(name: str) -> bytes:
    """Return a module of `modules/`, or the one that this text is."""
    text = name if name.startswith("(") else (HERE / "modules" / f"{name}.wat").read_text()
    return bytes(wasmtime.wat2wasm(text))


@pytest.fixture
def module() -> Module:
    """Returns a module by its name, or by its text."""
    return assembled


@pytest.fixture
def make() -> Callable[..., Sandbox]:
    """Makes sandboxes of modules that are not started yet; takes what `Sandbox` takes."""
    return lambda **settings: Sandbox(runtime="wasm", **settings)
