"""What is kept is recorded unless somebody says otherwise: steps, snapshots, forks, rewinds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from cloister import Sandbox
from cloister.ledger import (
    Entry,
    FilesChanged,
    Forked,
    Planned,
    ProcessStarted,
    Rewound,
    SnapshotTaken,
)
from cloister.ledger.reading import list_ledgers, read_entries, verify_ledger
from cloister.policy import LedgerMode

OF_THE_TASK = (Planned, ProcessStarted)


def entries(state: Path, name: str) -> list[Entry]:
    return list(read_entries(state, name))


def of_kind(found: list[Entry], kind: type) -> list[Any]:
    return [entry.payload for entry in found if isinstance(entry.payload, kind)]


async def test_what_is_kept_has_one_ledger_for_all_its_life(make: Any, state: Path) -> None:
    for _ in range(2):
        async with make(keep="lasting") as sandbox:
            assert sandbox.policy.ledger is LedgerMode.ON
            await sandbox.run(["true"])
    found = entries(state, "lasting")
    assert [listed.label for listed in of_kind(found, Planned)][-1] == sandbox.id
    assert [each.by for each in of_kind(found, ProcessStarted)] == ["api", "api"]
    report = verify_ledger(state, "lasting")
    assert report.holds and report.unfinished_count == 0


async def test_what_was_kept_without_a_ledger_stays_without(make: Any, state: Path) -> None:
    for settings in ({"ledger": "off"}, {}):
        async with make(keep="unrecorded", **settings) as sandbox:
            assert sandbox.policy.ledger is LedgerMode.OFF
    assert "unrecorded" not in list_ledgers(state)
    async with make(keep="unrecorded", ledger="on"):
        pass
    assert "unrecorded" in list_ledgers(state)


async def test_snapshots_rewinds_and_forks_are_recorded(make: Any, state: Path) -> None:
    async with make(keep="branching") as sandbox:
        taken = await sandbox.snapshot("before")
        await sandbox.run("echo 1 > /workspace/a")
        await sandbox.rewind("before")
        async with Sandbox.fork(taken) as (child,):
            await child.run(["true"])
        found = entries(state, "branching")
    assert of_kind(found, SnapshotTaken)[0].snapshot == taken.id
    (rewound,) = of_kind(found, Rewound)
    assert rewound.snapshot == taken.id and rewound.left != taken.id
    (forked,) = of_kind(found, Forked)
    assert (forked.snapshot, forked.parent, forked.child) == (taken.id, "branching", child.id)
    assert of_kind(entries(state, child.id), Forked) == [forked]
    assert verify_ledger(state, "branching").holds
    assert verify_ledger(state, child.id).unfinished_count == 0


async def test_each_step_of_a_history_has_its_number(make: Any, state: Path) -> None:
    async with make(keep="stepwise", history="each-run") as sandbox:
        await sandbox.run("echo 1 > /workspace/a")
        await sandbox.run("echo 2 > /workspace/a")
    found = entries(state, "stepwise")
    assert [each.step for each in of_kind(found, SnapshotTaken)] == [1, 2]
    assert [each.step for each in of_kind(found, ProcessStarted) if each.by == "api"] == [1, 2]


async def test_what_each_step_changed_is_recorded(make: Any, state: Path) -> None:
    async with make(keep="changing", history="each-run") as sandbox:
        await sandbox.run("echo one > /workspace/a; mkdir /workspace/d; echo two > /workspace/d/b")
        await sandbox.run("echo more >> /workspace/a; rm /workspace/d/b; chmod 600 /workspace/d")
        await sandbox.run(["true"])
        await sandbox.rewind(1)
        await sandbox.run("rm -r /workspace/d")
    steps = of_kind(entries(state, "changing"), FilesChanged)
    assert [each.unseen for each in steps] == [None] * 4
    assert [sorted(each.paths) for each in steps] == [
        ["/workspace/a", "/workspace/d", "/workspace/d/b"],
        ["/workspace/a", "/workspace/d", "/workspace/d/b"],
        [],
        ["/workspace/d"],
    ]
    counts = [(each.added, each.modified, each.removed) for each in steps]
    assert counts == [(3, 0, 0), (0, 2, 1), (0, 0, 0), (0, 0, 1)]
    assert len({each.digest for each in steps}) == 4
    assert verify_ledger(state, "changing").holds


async def test_a_step_that_changes_the_same_again_has_the_same_digest(
    make: Any, state: Path
) -> None:
    async with make(keep="again", history="each-run") as sandbox:
        before = await sandbox.snapshot("before")
        await sandbox.run("echo one > /workspace/a")
        await sandbox.rewind(before)
        await sandbox.run("echo one > /workspace/a")
        await sandbox.rewind(before)
        await sandbox.run("echo other > /workspace/a")
    first, same, other = of_kind(entries(state, "again"), FilesChanged)
    assert first.digest == same.digest != other.digest


async def test_a_step_whose_snapshot_is_gone_is_said_to_be_unseen(make: Any, state: Path) -> None:
    async with make(keep="unseen", history="each-run", ledger="on") as sandbox:
        trees = sandbox._state._trees_of(await sandbox.snapshot())
        away = tuple(bench / "gone" for bench in trees.benches)
        sandbox.recording.changes.add(7, replace(trees, benches=away))
        await sandbox.recording.changes.settle()
    (said,) = of_kind(entries(state, "unseen"), FilesChanged)
    assert said.step == 7 and "were removed" in said.unseen


async def test_the_callers_trace_is_in_every_entry_and_inside(make: Any, state: Path) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with make(keep="traced", env={"TRACEPARENT": trace}) as sandbox:
        assert (await sandbox.run("echo $TRACEPARENT")).stdout == f"{trace}\n"
    async with make(keep="untraced", env={"TRACEPARENT": "nonsense"}) as sandbox:
        assert (await sandbox.run("echo $TRACEPARENT")).stdout == "nonsense\n"
    found = [entry for entry in entries(state, "traced") if isinstance(entry.payload, OF_THE_TASK)]
    assert found and {str(entry.trace) for entry in found} == {trace}
    assert {entry.trace for entry in entries(state, "untraced")} == {None}
