"""What is recorded of a sandbox: what ran, in order, by whose word; and that edits are found."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from cloister import Denied, HostError, LaunchFailed, Limits, Reason, Sandbox
from cloister.ledger import (
    Entry,
    FileAccessed,
    Judged,
    Launched,
    LimitHit,
    NotLaunched,
    Planned,
    ProcessEnded,
    ProcessStarted,
    Stopped,
)
from cloister.ledger.reading import Fault, list_ledgers, make_receipt, read_entries, verify_ledger
from cloister.ledger.text import listed
from cloister.node import process_socket

Make = Callable[..., Sandbox]

OWNER = """
import asyncio, sys
from cloister import Sandbox

async def main():
    async with Sandbox(ledger="on", label="killed") as sandbox:
        process = await sandbox.start("echo inside; sleep 60")
        await anext(aiter(process.stdout))
        print("ready", flush=True)
        await process.wait()

asyncio.run(main())
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of its own."""
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
async def recorded(make: Make, state: Path, nothing_stays: None) -> AsyncIterator[Sandbox]:
    """A running sandbox with a ledger."""
    async with make(ledger="on", label="task-42") as sandbox:
        yield sandbox


def entries(state: Path, sandbox: str) -> list[Entry]:
    return list(read_entries(state, sandbox))


def started(found: list[Entry], by: str) -> list[list[str]]:
    payloads = [entry.payload for entry in found]
    return [listed(p.argv) for p in payloads if isinstance(p, ProcessStarted) and p.by == by]


def of_kind(found: list[Entry], kind: type) -> list[Any]:
    return [entry.payload for entry in found if isinstance(entry.payload, kind)]


async def test_the_ledger_names_what_was_asked_for_in_order(
    recorded: Sandbox, state: Path, transport: str
) -> None:
    await recorded.run(["true"])
    await recorded.run("exit 3")
    await recorded.files.write("/workspace/a", b"12345")
    await recorded.stop()
    found = entries(state, recorded.id)
    assert started(found, "api") == [["true"], ["/bin/sh", "-c", "exit 3"]]
    (planned,), (launched,) = of_kind(found, Planned), of_kind(found, Launched)
    runtime = transport if transport in ("gvisor", "microvm") else "namespace"
    assert (planned.label, planned.runtime) == ("task-42", runtime)
    assert f"wall={runtime}" in listed(launched.posture)
    assert planned.plan == launched.plan
    assert "seccomp=2" in listed(launched.posture)
    assert [entry.kind for entry in found if entry.kind.startswith("sandbox.")] == [
        "sandbox.planned",
        "sandbox.launched",
        "sandbox.stopped",
    ]
    spans = {entry.span: entry.payload for entry in found if entry.kind == "process.ended"}
    codes = [
        spans[entry.span].exit_code
        for entry in found
        if isinstance(entry.payload, ProcessStarted) and entry.payload.by == "api"
    ]
    assert codes == [0, 3]
    report = verify_ledger(state, recorded.id)
    assert report.holds and report.is_closed and report.unfinished_count == 0
    assert report.signed_through is not None


async def test_what_programs_start_themselves_is_the_kernels_word(
    recorded: Sandbox, state: Path
) -> None:
    # Held open until it has surely been seen: of a shorter one there may be no argv.
    line = "sleep 0.3; (exit 4); sh -c 'sleep 0.2; exit 5'; true"
    assert (await recorded.run(line)).ok
    await recorded.stop()
    found = entries(state, recorded.id)
    unseen = " ".join(listed(of_kind(found, Launched)[0].unseen))
    if "does not tell this user" in unseen:
        assert started(found, "inside") == []
        return
    inside = started(found, "inside")
    assert ["sleep", "0.3"] in inside
    assert ["sh", "-c", "sleep 0.2; exit 5"] in inside
    codes = {
        payload.exit_code for payload in of_kind(found, ProcessEnded) if payload.source == "kernel"
    }
    assert {0, 4, 5} <= codes
    # Process numbers and parents are the ones inside.
    shell = next(
        p for p in of_kind(found, ProcessStarted) if listed(p.argv)[:1] == ["sh"] and p.pid
    )
    child = next(p for p in of_kind(found, ProcessStarted) if listed(p.argv) == ["sleep", "0.2"])
    assert child.parent_pid == shell.pid


async def test_of_many_short_processes_none_is_left_out(recorded: Sandbox, state: Path) -> None:
    line = "i=0; while [ $i -lt 100 ]; do /bin/true; i=$((i+1)); done"
    assert (await recorded.run(line)).ok
    await recorded.stop()
    found = entries(state, recorded.id)
    if "does not tell this user" in " ".join(listed(of_kind(found, Launched)[0].unseen)):
        return
    report = verify_ledger(state, recorded.id)
    assert len(started(found, "inside")) + report.lost >= 100
    assert report.unfinished_count == 0


async def test_events_that_do_not_get_through_are_counted(
    make: Make, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_socket, "_BUFFER_BYTES", 4096)
    line = "i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done"
    async with make(ledger="on") as sandbox:
        assert (await sandbox.run(line)).ok
    found = entries(state, sandbox.id)
    if "does not tell this user" in " ".join(listed(of_kind(found, Launched)[0].unseen)):
        return
    report = verify_ledger(state, sandbox.id)
    assert report.lost > 0
    assert report.holds and report.unfinished_count == 0
    assert "could not be written" in " ".join(make_receipt(state, sandbox.id).coverage)


async def test_a_script_is_one_process_and_says_what_interprets_it(
    recorded: Sandbox, state: Path
) -> None:
    await recorded.files.write("/workspace/s", "#!/bin/sh\nread line\n", mode=0o755)
    assert (await recorded.run(["/workspace/s"], stdin="x\n")).ok
    await recorded.stop()
    found = entries(state, recorded.id)
    assert started(found, "inside") == []
    assert verify_ledger(state, recorded.id).unfinished_count == 0


async def test_a_user_who_is_not_permitted_is_recorded_and_one_who_is_is_not(
    recorded: Sandbox, state: Path
) -> None:
    await recorded.run(["true"], user="user")
    with pytest.raises(Denied):
        await recorded.run(["id"], user="root")
    await recorded.stop()
    found = entries(state, recorded.id)
    (verdict,) = of_kind(found, Judged)
    assert verdict.effect == "deny"
    assert listed(verdict.inputs) == ["uid=0", "gid=0", "id"]
    assert ["id"] not in started(found, "api")
    assert make_receipt(state, recorded.id).denials[0].count == 1


async def test_files_that_go_in_and_out_are_recorded(
    recorded: Sandbox, state: Path, tmp_path: Path
) -> None:
    (tmp_path / "given").write_bytes(b"1234")
    await recorded.files.copy_in(tmp_path / "given", "/workspace/given")
    await recorded.files.move("/workspace/given", "/workspace/taken")
    await recorded.files.copy_out("/workspace/taken", tmp_path / "out")
    await recorded.files.remove("/workspace/taken")
    await recorded.files.list("/workspace")
    await recorded.stop()
    found = of_kind(entries(state, recorded.id), FileAccessed)
    assert [(each.operation, each.path, each.content_bytes, each.other) for each in found] == [
        ("copy_in", "/workspace/given", 4, str(tmp_path / "given")),
        ("move", "/workspace/given", None, "/workspace/taken"),
        ("copy_out", "/workspace/taken", 4, str(tmp_path / "out")),
        ("remove", "/workspace/taken", None, None),
    ]


async def test_a_limit_that_is_reached_is_recorded(make: Make, state: Path) -> None:
    async with make(ledger="on", limits=Limits(wall="0.2s", lifetime="10m")) as sandbox:
        await sandbox.run(["sleep", "60"])
    found = of_kind(entries(state, sandbox.id), LimitHit)
    assert [each.limit for each in found] == ["wall"]


async def test_memory_that_ran_out_is_recorded_by_the_kernels_count(
    make: Make, state: Path
) -> None:
    async with make(ledger="on", limits=Limits(memory="64MiB")) as sandbox:
        result = await sandbox.run(["python3", "-c", "bytearray(2**28)"])
    assert result.reason is Reason.MEMORY
    (hit,) = of_kind(entries(state, sandbox.id), LimitHit)
    assert (hit.limit, hit.value) == ("memory", 64 * 2**20)


async def test_a_wall_that_does_not_come_up_is_recorded(make: Make, state: Path) -> None:
    sandbox = make(ledger="on")
    sandbox._amend = lambda plan: plan.rehearsing("fail", "seccomp")
    with pytest.raises(LaunchFailed):
        await sandbox.open()
    found = entries(state, sandbox.id)
    (said,) = of_kind(found, NotLaunched)
    assert said.step == "seccomp"
    assert of_kind(found, Launched) == of_kind(found, Stopped) == []
    assert verify_ledger(state, sandbox.id).unfinished_count == 0


async def test_nothing_starts_where_nothing_can_be_recorded(
    make: Make, state: Path, tmp_path: Path
) -> None:
    state.write_text("not a directory")
    sandbox = make(ledger="on")
    with pytest.raises(HostError):
        await sandbox.open()
    assert not sandbox.is_running
    async with make() as other:
        assert (await other.run(["true"])).ok


async def test_a_sandbox_in_memory_has_no_ledger_unless_asked(make: Make, state: Path) -> None:
    async with make() as sandbox:
        await sandbox.run(["true"])
    assert not state.exists()
    async with make(ledger="on"):
        pass
    assert len(list_ledgers(state)) == 1


async def test_an_edited_entry_is_found(recorded: Sandbox, state: Path) -> None:
    await recorded.run(["true"])
    await recorded.stop()
    assert verify_ledger(state, recorded.id).holds
    (file,) = (state / "ledger" / recorded.id).glob("*.jsonl")
    file.write_bytes(file.read_bytes().replace(b'"argv":["true"]', b'"argv":["echo"]', 1))
    report = verify_ledger(state, recorded.id)
    assert not report.holds
    assert report.findings[0].fault is Fault.EDITED
    with pytest.raises(HostError, match="does not hold"):
        make_receipt(state, recorded.id)


async def test_an_owner_that_is_killed_leaves_begins_without_ends(state: Path) -> None:
    def die() -> None:
        with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"ready\n"
            os.kill(owner.pid, signal.SIGKILL)

    await asyncio.to_thread(die)
    (name,) = list_ledgers(state)
    report = verify_ledger(state, name)
    assert report.holds and not report.is_closed
    kinds = [begun.kind for begun in report.unfinished]
    assert {"sandbox.planned", "process.started"} <= set(kinds)
    assert "had begun" in " ".join(make_receipt(state, name).coverage)
