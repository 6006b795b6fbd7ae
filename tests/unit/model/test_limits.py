"""Limits: friendly in, plain numbers out, and never lifted by accident."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import RequestError
from cloister.model import LIMIT_NAMES, Limits

MIB = 2**20


def test_defaults_are_the_documented_ones() -> None:
    limits = Limits()
    assert (limits.memory, limits.pids, limits.cpus) == (2048 * MIB, 256, 1.0)
    assert (limits.disk, limits.inodes, limits.open_files) == (1024 * MIB, 200_000, 4096)
    assert (limits.shm, limits.output) == (64 * MIB, 10 * MIB)
    assert (limits.wall, limits.lifetime, limits.idle) == (300.0, 3600.0, None)


def test_friendly_forms_become_plain_numbers() -> None:
    limits = Limits(memory="1GiB", wall="1m30s", cpus="0.5", disk=5 * MIB)
    assert (limits.memory, limits.wall, limits.cpus) == (1024 * MIB, 90.0, 0.5)
    assert limits == Limits(memory=1024 * MIB, wall=90, cpus=0.5, disk="5MiB")
    assert hash(limits) == hash(Limits(memory=1024 * MIB, wall=90, cpus=0.5, disk="5MiB"))


@pytest.mark.parametrize("name", ["memory", "cpus", "disk", "wall", "lifetime", "idle"])
def test_unlimited_is_accepted_where_it_may_be(name: str) -> None:
    assert getattr(Limits(**{name: "unlimited"}), name) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["pids", "inodes", "open_files", "shm", "output"])
def test_unlimited_is_refused_where_it_may_not_be(name: str) -> None:
    with pytest.raises(RequestError, match=name):
        Limits(**{name: "unlimited"})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", LIMIT_NAMES)
@pytest.mark.parametrize(
    "value",
    [None, -1, 0, True, float("nan"), float("inf"), "", "x", 10**400],
    ids=["none", "minus-one", "zero", "true", "nan", "inf", "empty", "x", "huge"],
)
def test_a_value_that_is_no_limit_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"^{name} is "):
        Limits(**{name: value})


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("memory", 16 * MIB),
        ("disk", MIB),
        ("shm", 4096),
        ("inodes", 64),
        ("pids", 2),
        ("open_files", 16),
        ("output", 1),
    ],
)
def test_the_least_is_accepted_and_one_less_refused(name: str, least: int) -> None:
    assert getattr(Limits(**{name: least}), name) == least
    with pytest.raises(RequestError, match=name):
        Limits(**{name: least - 1})


@pytest.mark.parametrize(
    ("name", "most"),
    [("pids", 1_000_000), ("open_files", 1_048_576), ("cpus", 4096), ("inodes", 2**32 - 1)],
)
def test_the_most_is_accepted_and_one_more_refused(name: str, most: int) -> None:
    assert getattr(Limits(**{name: most}), name) == most
    with pytest.raises(RequestError, match=name):
        Limits(**{name: most + 1})


def test_replace_changes_only_what_is_named() -> None:
    limits = Limits(memory="unlimited", idle="5m").replace(pids=7)
    assert limits == Limits(memory="unlimited", idle="5m", pids=7)


def test_replace_refuses_an_unknown_name() -> None:
    with pytest.raises(RequestError, match="memroy"):
        Limits().replace(memroy="1GiB")


def test_limits_cannot_be_changed_and_can_be_pickled() -> None:
    limits = Limits(memory="1GiB")
    with pytest.raises(AttributeError):
        limits.pids = 5  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(limits)) == limits


durations = st.floats(0.001, 10**9) | st.just("unlimited")


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "memory": st.integers(16 * MIB, 2**63 - 1) | st.just("unlimited"),
            "pids": st.integers(2, 1_000_000),
            "cpus": st.floats(0.01, 4096) | st.just("unlimited"),
            "disk": st.integers(MIB, 2**63 - 1) | st.just("unlimited"),
            "inodes": st.integers(64, 2**32 - 1),
            "wall": durations,
            "lifetime": durations,
            "idle": durations,
        },
    )
)
def test_as_dict_gives_the_same_limits_again(values: dict[str, Any]) -> None:
    limits = Limits(**values)
    assert Limits(**limits.as_dict()) == limits
