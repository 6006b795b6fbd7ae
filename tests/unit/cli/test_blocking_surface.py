"""The blocking facade offers what the asynchronous classes offer, with the same signatures."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from cloister import blocking
from cloister.sandbox import Files, Process, Sandbox

PAIRS = [(Sandbox, blocking.Sandbox), (Files, blocking.Files), (Process, blocking.Process)]
# Between the sandbox and its guest; nobody outside the loop can use them.
OF_THE_WIRE = {
    *("Files.get_parcel", "Files.put_parcel"),
    "Sandbox.link",
    "Process.begin",
    "Process.hear",
    "Process.lost",
}
OF_THE_WIRE |= {"Process.wait_started", "Sandbox.enter", "Sandbox.leave", "Sandbox.permitted"}
OF_THE_WIRE |= {"Sandbox.adopt", "Sandbox.guest", "Sandbox.start_guest", "Sandbox.end_guest"}
OF_THE_WIRE |= {"Sandbox.freeze", "Sandbox.is_idle", "Sandbox.stand_on"}
OF_THE_WIRE |= {"Sandbox.remember", "Sandbox.begin_another", "Sandbox.has_no_guest"}
OF_THE_WIRE |= {"Sandbox.wait_until_moving", "Sandbox.end_step", "Sandbox.compared"}
OF_THE_WIRE |= {"Sandbox.wait_ended", "Sandbox.recording", "Sandbox.comparing", "Sandbox.ask"}
OF_THE_WIRE |= {"Sandbox.wait_ended", "Sandbox.recording", "Sandbox.why_ended"}
OF_THE_WIRE |= {"Sandbox.make_process", "Sandbox.record_call", "Process.is_over"}
OF_THE_WIRE |= {"Sandbox.modules", "Sandbox.call_module", "Sandbox.require_programs"}
OF_THE_WIRE |= {"Sandbox.warm_modules", "Sandbox.close_modules", "Sandbox.belongs_to"}
OF_THE_WIRE |= {"Sandbox.owner", "Sandbox.witness_traffic"}
# What a blocking method gives or takes differs from the asynchronous one, and only so.
DIFFERENT = {
    "Sandbox.dial": "a socket instead of two streams",
    "Sandbox.start": "a blocking Process",
    "Sandbox.diff": "a tuple instead of what can be awaited",
    "Files.watch": "a threading.Event instead of an asyncio.Event",
    "Files.write": "no asynchronous iterables",
    "Files.append": "no asynchronous iterables",
}


def names(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def pairs_of_methods() -> Iterator[tuple[str, object, object]]:
    for asynchronous, plain in PAIRS:
        for name in sorted(names(asynchronous) & names(plain)):
            found = inspect.getattr_static(asynchronous, name)
            if inspect.isfunction(found):
                yield f"{plain.__name__}.{name}", found, getattr(plain, name)


@pytest.mark.parametrize(("asynchronous", "plain"), PAIRS)
def test_nothing_is_missing_and_nothing_is_added(asynchronous: type, plain: type) -> None:
    missing = {f"{plain.__name__}.{name}" for name in names(asynchronous) - names(plain)}
    assert missing - OF_THE_WIRE == set()
    # Attributes that the asynchronous class sets in its __init__ are properties here.
    assert names(plain) - names(asynchronous) <= {"id", "label", "policy"}


@pytest.mark.parametrize(
    ("name", "asynchronous", "plain"), [pytest.param(*p, id=p[0]) for p in pairs_of_methods()]
)
def test_parameters_and_explanations_are_the_same(
    name: str, asynchronous: object, plain: object
) -> None:
    assert callable(asynchronous) and callable(plain)
    wanted, found = inspect.signature(asynchronous), inspect.signature(plain)
    assert list(found.parameters) == list(wanted.parameters)
    for parameter in wanted.parameters.values():
        assert found.parameters[parameter.name].default == parameter.default
        assert found.parameters[parameter.name].kind == parameter.kind
    if name not in DIFFERENT and name != "Sandbox.open":
        assert inspect.getdoc(plain) == inspect.getdoc(asynchronous)
    assert not inspect.iscoroutinefunction(plain)


def test_a_sandbox_is_made_with_the_same_arguments() -> None:
    assert inspect.signature(blocking.Sandbox) == inspect.signature(Sandbox)
