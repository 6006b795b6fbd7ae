"""What is kept is recorded unless somebody says otherwise: steps, snapshots, forks, rewinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cloister import Sandbox
from cloister.ledger import Entry, Forked, Planned, ProcessStarted, Rewound, SnapshotTaken
from cloister.ledger.reading import list_ledgers, read_entries, verify_ledger
from cloister.policy import LedgerMode


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
