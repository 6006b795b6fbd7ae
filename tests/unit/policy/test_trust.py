"""The runtime chosen is the cheapest that is strong enough, never a weaker one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import Unsupported
from cloister.model import Trust
from cloister.policy import STRENGTHS, RuntimeFacts, choose_runtime

NAMESPACE = RuntimeFacts("namespace", STRENGTHS["namespace"], 1, True)
GVISOR = RuntimeFacts("gvisor", STRENGTHS["gvisor"], 100, True)
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
    assert choose_runtime(trust, [MICROVM, NAMESPACE, GVISOR]) == name


def test_a_missing_runtime_is_replaced_by_a_stronger_one() -> None:
    assert choose_runtime(Trust.UNTRUSTED, [NAMESPACE, NO_GVISOR, MICROVM]) == "microvm"


def test_a_missing_runtime_is_never_replaced_by_a_weaker_one() -> None:
    with pytest.raises(Unsupported) as caught:
        choose_runtime(Trust.UNTRUSTED, [NAMESPACE, NO_GVISOR])
    text = str(caught.value)
    assert 'namespace: its wall is for trust = "internal" only' in text
    assert "gvisor: runsc is not installed" in text


def test_no_runtime_at_all_is_said_so() -> None:
    with pytest.raises(Unsupported, match="no runtime at all"):
        choose_runtime(Trust.INTERNAL, [])


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
            choose_runtime(trust, available)
        return
    name = choose_runtime(trust, available)
    chosen = next(each for each in fit if each.name == name)
    assert chosen.cost == min(each.cost for each in fit)
