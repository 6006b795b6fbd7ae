"""The error tree: documented, whole, complete in words, and able to cross a process boundary."""

from __future__ import annotations

import inspect
import pickle

import pytest

from cloister import errors
from cloister.errors import CloisterError
from cloister.model import Reason, Result, Usage
from cloister.policy import Effect, Verdict

VERDICT = Verdict(Effect.DENY, "default", "no rule allows it")
RESULT = Result(1, None, Reason.EXIT, b"", b"", False, False, 0, 0, 0.1, Usage(0, 0, 0, 0, 0, 1))

ATTRIBUTES: dict[str, dict[str, object]] = {
    "CloisterError": {},
    "RequestError": {},
    "NotFound": {"what": "/missing"},
    "AlreadyExists": {"what": "/there"},
    "Busy": {"holder": "4711"},
    "ImageRefused": {},
    "PolicyError": {"place": "cloister.toml:3 limits.memroy", "nearest": "memory"},
    "TokenRefused": {},
    "ScopeMissing": {"scope": "sandboxes:write"},
    "Unsupported": {},
    "Denied": {"verdict": VERDICT},
    "Exhausted": {"limit": "memory"},
    "GuestError": {},
    "ProtocolViolation": {},
    "GuestGone": {"reason": "lifetime"},
    "FileError": {"path": "/workspace", "errno_name": "EISDIR"},
    "ProcessFailed": {"result": RESULT},
    "HostError": {},
    "LaunchFailed": {"step": "seccomp", "errno": 22, "hint": "update the kernel"},
    "CannotEnforce": {"limit": "memory", "why": "no controller", "enable": "delegate it"},
    "RuntimeGone": {},
}


def tree(kind: type[CloisterError]) -> list[type[CloisterError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in tree(child))]


def defined() -> dict[str, type[CloisterError]]:
    return {
        name: kind
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if kind.__module__ == errors.__name__ and issubclass(kind, CloisterError)
    }


def test_every_error_hangs_in_the_one_tree_and_is_covered_here() -> None:
    exceptions = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, BaseException)
    ]
    assert set(exceptions) == set(defined().values()) <= set(tree(CloisterError))
    assert set(defined()) == set(ATTRIBUTES)


def test_the_module_docstring_draws_the_tree_as_it_is() -> None:
    drawn: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        for mark in ("├── ", "└── "):
            if mark in line:
                indent, _, rest = line.partition(mark)
                drawn.append((len(indent) // 4 + 1, rest.split()[0]))
    path = ["CloisterError"]
    for depth, name in drawn:
        path = [*path[:depth], name]
        assert defined()[name].__bases__ == (defined()[path[-2]],), name
    assert {name for _, name in drawn} | {"CloisterError"} == set(ATTRIBUTES)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_each_error_is_documented(name: str) -> None:
    assert defined()[name].__dict__.get("__doc__")


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_each_error_keeps_message_and_attributes_through_pickling(name: str) -> None:
    error = defined()[name]("the fact", **ATTRIBUTES[name])
    error.add_note("seen in a worker")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__notes__ == ["seen in a worker"]
    for attribute, value in ATTRIBUTES[name].items():
        assert getattr(copy, attribute) == value == getattr(error, attribute)


def test_text_includes_the_next_step() -> None:
    def text(name: str) -> str:
        return str(defined()[name]("the fact", **ATTRIBUTES[name]))

    assert text("PolicyError") == (
        'cloister.toml:3 limits.memroy: the fact; did you mean "memory"?'
    )
    assert text("LaunchFailed") == "the fact; update the kernel"
    assert text("CannotEnforce") == "the fact: no controller; delegate it"
    assert str(errors.PolicyError("the fact", place="here")) == "here: the fact"
    assert str(errors.LaunchFailed("the fact", step="root")) == "the fact"


def test_denied_names_the_rule_of_its_verdict() -> None:
    assert errors.Denied("no", verdict=VERDICT).rule == "default"
