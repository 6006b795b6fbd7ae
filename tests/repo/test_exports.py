"""What `cloister` exports is sorted, exists and explains itself."""

from __future__ import annotations

import inspect

import pytest

import cloister


def test_all_is_sorted_and_has_no_doubles() -> None:
    assert list(cloister.__all__) == sorted(set(cloister.__all__))


def test_all_holds_the_names_of_the_first_example() -> None:
    assert {"Limits", "Sandbox"} <= set(cloister.__all__)


@pytest.mark.parametrize("name", cloister.__all__)
def test_each_exported_name_exists_and_has_a_docstring(name: str) -> None:
    exported = getattr(cloister, name)
    if inspect.isclass(exported) or inspect.isroutine(exported):
        text = exported.__doc__ or ""
        # A dataclass without a docstring gets its signature for one.
        assert text and not text.startswith(f"{name}(")
    else:
        assert isinstance(exported, str), f"{name} is neither a class, a function nor a text"
