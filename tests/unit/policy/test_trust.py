"""The runtime chosen is the cheapest that is strong enough, never a weaker one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import RequestError, Unsupported
from cloister.model import Trust
from cloister.policy import (
    STRENGTHS,
    Requirement,
    RuntimeFacts,
    WallWanted,
    choose_runtime,
    parse_table,
)

NAMESPACE = RuntimeFacts("namespace", STRENGTHS["namespace"], 1, True)
GVISOR = RuntimeFacts("gvisor", STRENGTHS["gvisor"], 100, True, own_kernel=True)
MICROVM = RuntimeFacts("microvm", STRENGTHS["microvm"], 2000, True)
NO_GVISOR = RuntimeFacts("gvisor", STRENGTHS["gvisor"], 100, False, "runsc is not installed")


@pytest.mark.parametrize(
    ("trust", "name"),
    [
        (Trust.INTERNAL, "namespace"),
        (Trust.UNTRUSTED, "gvisor"),
        (Trust.HOSTILE, "microvm"),
    ],
)
def test_each_trust_gets_the_cheapest_wall_made_for_it(trust: Trust, name: str) -> None:
    assert choose_runtime(WallWanted(trust), [MICROVM, NAMESPACE, GVISOR]) == name


def test_a_missing_runtime_is_replaced_by_a_stronger_one() -> None:
    assert choose_runtime(WallWanted(Trust.UNTRUSTED), [NAMESPACE, NO_GVISOR, MICROVM]) == "microvm"


def test_a_missing_runtime_is_never_replaced_by_a_weaker_one() -> None:
    with pytest.raises(Unsupported) as caught:
        choose_runtime(WallWanted(Trust.UNTRUSTED), [NAMESPACE, NO_GVISOR])
    text = str(caught.value)
    assert 'namespace: its wall is for trust = "internal" only' in text
    assert "gvisor: runsc is not installed" in text


def test_no_runtime_at_all_is_said_so() -> None:
    with pytest.raises(Unsupported, match="no runtime at all"):
        choose_runtime(WallWanted(Trust.INTERNAL), [])


def test_a_runtime_that_is_named_is_the_one() -> None:
    wanted = WallWanted(Trust.INTERNAL, "microvm")
    assert choose_runtime(wanted, [NAMESPACE, GVISOR, MICROVM]) == "microvm"


def test_a_runtime_that_is_named_and_too_weak_is_refused() -> None:
    with pytest.raises(Unsupported, match='for trust = "internal" only'):
        choose_runtime(WallWanted(Trust.UNTRUSTED, "namespace"), [NAMESPACE, GVISOR])


def test_a_runtime_that_is_named_and_missing_is_not_replaced() -> None:
    with pytest.raises(Unsupported, match="runsc is not installed"):
        choose_runtime(WallWanted(Trust.INTERNAL, "gvisor"), [NAMESPACE, NO_GVISOR, MICROVM])
    with pytest.raises(Unsupported, match='no runtime "wasm" in this release'):
        choose_runtime(WallWanted(Trust.INTERNAL, "wasm"), [NAMESPACE])


def test_a_kernel_of_its_own_can_be_required_at_any_trust() -> None:
    wanted = WallWanted(Trust.INTERNAL, require=Requirement.OWN_KERNEL)
    assert choose_runtime(wanted, [NAMESPACE, GVISOR]) == "gvisor"
    with pytest.raises(Unsupported, match="it has no kernel of its own"):
        choose_runtime(wanted, [NAMESPACE])
    named = WallWanted(Trust.INTERNAL, "namespace", Requirement.OWN_KERNEL)
    with pytest.raises(Unsupported, match="it has no kernel of its own"):
        choose_runtime(named, [NAMESPACE, GVISOR])


def test_the_table_names_a_wall_for_a_trust_and_a_policy_comes_before_it() -> None:
    table = parse_table("internal=gvisor, untrusted=microvm")
    here = [NAMESPACE, GVISOR, MICROVM]
    assert choose_runtime(WallWanted(Trust.INTERNAL), here, table) == "gvisor"
    assert choose_runtime(WallWanted(Trust.UNTRUSTED), here, table) == "microvm"
    assert choose_runtime(WallWanted(Trust.INTERNAL, "namespace"), here, table) == "namespace"


@pytest.mark.parametrize(
    "text",
    ["internal", "internal=", "inner=gvisor", "internal=xen", "internal=gvisor,internal=gvisor"],
)
def test_a_table_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(RequestError, match="CLOISTER_RUNTIMES has"):
        parse_table(text)


def test_a_table_cannot_give_a_weaker_wall() -> None:
    with pytest.raises(RequestError, match='for trust = "internal" only'):
        parse_table("hostile=namespace")


def test_what_is_for_some_programs_only_is_never_chosen_unasked() -> None:
    narrow = RuntimeFacts("wasm", Trust.HOSTILE, 0, True, own_kernel=True, general=False)
    assert choose_runtime(WallWanted(Trust.INTERNAL), [narrow, NAMESPACE]) == "namespace"
    assert choose_runtime(WallWanted(Trust.INTERNAL, "wasm"), [narrow, NAMESPACE]) == "wasm"


facts = st.builds(
    RuntimeFacts,
    st.sampled_from("abcdef"),
    st.sampled_from(Trust),
    st.integers(0, 5),
    st.booleans(),
)


@given(st.sampled_from(Trust), st.lists(facts, unique_by=lambda each: each.name))
def test_whatever_is_chosen_is_there_and_strong_enough(
    trust: Trust, available: list[RuntimeFacts]
) -> None:
    fit = [each for each in available if each.available and each.strength.covers(trust)]
    if not fit:
        with pytest.raises(Unsupported):
            choose_runtime(WallWanted(trust), available)
        return
    name = choose_runtime(WallWanted(trust), available)
    chosen = next(each for each in fit if each.name == name)
    assert chosen.cost == min(each.cost for each in fit)
