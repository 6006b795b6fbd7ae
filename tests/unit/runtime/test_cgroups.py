"""Limits become what the kernel's files take, on each kind of hierarchy, or an error that helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloister import CannotEnforce, Limits
from cloister.runtime.namespace.cgroups import GroupFiles, Layout, plan_limits

EVERYTHING = frozenset({"memory", "pids", "cpu"})


def written(layout: Layout, limits: Limits) -> dict[str, tuple[str, str]]:
    """File -> (directory it goes below, value)."""
    directories = layout.directories()
    return {
        one.file: (str(directories[one.group]), one.value) for one in plan_limits(layout, limits)
    }


def hybrid(base: Path) -> Layout:
    return Layout({name: base / name for name in EVERYTHING}, base / "unified", frozenset(), {})


def test_version_2_has_one_group_for_all(tmp_path: Path) -> None:
    layout = Layout({}, tmp_path, EVERYTHING, {})
    found = written(layout, Limits(memory="64MiB", pids=10, cpus=0.5))
    assert layout.kind == "v2"
    assert found["memory.max"] == (str(tmp_path), str(64 << 20))
    assert found["cpu.max"] == (str(tmp_path), "50000 100000")
    # The guest is a process too, and not one of the caller's.
    assert found["pids.max"] == (str(tmp_path), "11")


def test_hybrid_writes_each_limit_where_its_controller_is(tmp_path: Path) -> None:
    layout = hybrid(tmp_path)
    found = written(layout, Limits(memory="64MiB", pids=10, cpus=2))
    assert layout.kind == "hybrid"
    assert found["memory.limit_in_bytes"] == (str(tmp_path / "memory"), str(64 << 20))
    assert found["cpu.cfs_quota_us"] == (str(tmp_path / "cpu"), "200000")
    assert found["pids.max"] == (str(tmp_path / "pids"), "11")


@pytest.mark.parametrize("counts_swap", [True, False])
def test_version_1_leaves_no_way_into_swap(tmp_path: Path, counts_swap: bool) -> None:
    (tmp_path / "memory").mkdir()
    if counts_swap:
        (tmp_path / "memory" / "memory.memsw.limit_in_bytes").touch()
    found = written(hybrid(tmp_path), Limits(memory="64MiB"))
    assert ("memory.memsw.limit_in_bytes" in found) == counts_swap
    assert ("memory.swappiness" in found) == (not counts_swap)


def test_what_is_unlimited_is_not_written(tmp_path: Path) -> None:
    limits = Limits(memory="unlimited", cpus="unlimited")
    assert set(written(hybrid(tmp_path), limits)) == {"pids.max"}


@pytest.mark.parametrize(("limit", "controller"), [("memory", "memory"), ("cpus", "cpu")])
def test_a_limit_without_its_controller_is_refused_with_the_way_to_enable_it(
    tmp_path: Path, limit: str, controller: str
) -> None:
    layout = Layout({}, tmp_path, EVERYTHING - {controller}, {controller: "it is not delegated"})
    with pytest.raises(CannotEnforce, match="it is not delegated") as raised:
        plan_limits(layout, Limits())
    assert raised.value.limit == limit
    assert f'{limit} = "unlimited"' in raised.value.enable
    plan_limits(layout, Limits(**{limit: "unlimited"}))


def test_no_group_at_all_still_counts_processes_elsewhere() -> None:
    missing = dict.fromkeys(EVERYTHING, "none is mounted")
    limits = Limits(memory="unlimited", cpus="unlimited")
    assert plan_limits(Layout({}, None, frozenset(), missing), limits) == ()


def test_a_group_that_is_gone_reads_as_nothing(tmp_path: Path) -> None:
    layout = hybrid(tmp_path)
    groups = GroupFiles(layout, "gone")
    assert groups.pids() == ()
    assert groups.hits().get("memory", 0) == 0
