"""After a death in the middle of writing: nothing written is lost, and what was torn is sealed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import HostError
from cloister.ledger import Keeping, Ledger, Paused, Payload, Recovered
from cloister.ledger.reading import Fault, read_entries, verify_ledger

Make = Callable[[int], Payload]
WRITER = """
import sys
from pathlib import Path
from cloister.ledger import Keeping, Ledger, ProcessStarted
ledger = Ledger(Path(sys.argv[1]), "sb_a", keeping=Keeping(file_bytes=20_000, checkpoint_entries=9))
number = 0
while True:
    ledger.write(ProcessStarted(("x" * 50, str(number)), "inside", "kernel", pid=number))
    # Told only after the write returned: whoever hears it may rely on it.
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
    number += 1
"""


def recovered(state: Path) -> list[Recovered]:
    entries = read_entries(state, "sb_a")
    return [entry.payload for entry in entries if isinstance(entry.payload, Recovered)]


def test_kill_9_at_any_moment_loses_nothing_that_was_written(tmp_path: Path) -> None:
    for times in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        told = -1
        for line in writer.stdout:
            told = int(line)
            if told >= random.randint(100, 400):
                break
        writer.send_signal(signal.SIGKILL)
        # What was still in the pipe was told before the death.
        told = max([told, *map(int, writer.stdout.read().split())])
        writer.wait()
        writer.stdout.close()
        before = verify_ledger(tmp_path, "sb_a")
        assert not before.is_closed and not before.is_written
        Ledger(tmp_path, "sb_a").close()
        report = verify_ledger(tmp_path, "sb_a")
        assert report.holds, report.findings
        assert report.recovered == times + 1
    pids = [getattr(e.payload, "pid", None) for e in read_entries(tmp_path, "sb_a")]
    assert pids.count(told) >= 1 and pids.index(told) > told


@given(st.integers(1, 400), st.booleans())
def test_a_line_torn_anywhere_is_sealed_where_it_is(
    tmp_path_factory: pytest.TempPathFactory, size: int, with_feeds: bool
) -> None:
    state = tmp_path_factory.mktemp("torn")
    ledger = Ledger(state, "sb_a")
    for _ in range(3):
        ledger.write(Paused())
    ledger.abandon()
    path = state / "ledger" / "sb_a" / "0000.jsonl"
    torn = path.read_bytes().splitlines(keepends=True)[-1][:-1][:size]
    if with_feeds:
        # A disk may also leave zeros where data had not arrived.
        torn = b"\0" * size
    with path.open("ab") as file:
        file.write(torn)
    assert {f.fault for f in verify_ledger(state, "sb_a").findings} == {Fault.TORN}
    with Ledger(state, "sb_a") as again:
        again.write(Paused())
    report = verify_ledger(state, "sb_a")
    assert report.holds and report.recovered == 1, report.findings
    assert path.read_bytes().endswith(torn)
    (found,) = recovered(state)
    assert isinstance(found.torn, tuple) and str(found.torn[0]).split()[:2] == [
        "0000.jsonl",
        str(len(torn)),
    ]
    # The seal holds it to the byte: a fragment that is changed or removed later is found.
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert not verify_ledger(state, "sb_a").holds
    path.write_bytes(content[: -len(torn)])
    assert not verify_ledger(state, "sb_a").holds
    path.write_bytes(content)
    assert verify_ledger(state, "sb_a").holds


def test_a_new_file_with_nothing_in_it_is_gone_on_with(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "sb_a")
    ledger.write(Paused())
    ledger.abandon()
    (tmp_path / "ledger" / "sb_a" / "0001.jsonl").touch()
    Ledger(tmp_path, "sb_a").close()
    report = verify_ledger(tmp_path, "sb_a")
    assert report.holds, report.findings


def test_a_ledger_that_was_only_torn_begins_anew(tmp_path: Path) -> None:
    place = tmp_path / "ledger" / "sb_a"
    place.mkdir(parents=True)
    (place / "0000.jsonl").write_bytes(b'{"entry":{"bef')
    Ledger(tmp_path, "sb_a").close()
    report = verify_ledger(tmp_path, "sb_a")
    assert report.holds and report.recovered == 1, report.findings


def test_a_death_of_a_writer_is_told_even_when_nothing_is_torn(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "sb_a")
    ledger.write(Paused())
    ledger.abandon()
    Ledger(tmp_path, "sb_a").close()
    (found,) = recovered(tmp_path)
    assert found.torn == () and found.missing_through is None


def test_entries_that_a_power_cut_took_are_told(tmp_path: Path, process: Make) -> None:
    ledger = Ledger(tmp_path, "sb_a", keeping=Keeping(checkpoint_entries=5))
    for number in range(12):
        ledger.write(process(number))
    ledger.abandon()
    path = tmp_path / "ledger" / "sb_a" / "0000.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]))
    Ledger(tmp_path, "sb_a").close()
    (found,) = recovered(tmp_path)
    assert found.missing_through is not None and found.missing_through > 4
    # And it stays found: the checkpoints in the second place do not fit what was written since.
    faults = {finding.fault for finding in verify_ledger(tmp_path, "sb_a").findings}
    assert faults and faults <= {Fault.EDITED, Fault.TRUNCATED}


@pytest.mark.parametrize("change", [b"edited", b""])
def test_a_ledger_whose_end_is_damaged_is_not_gone_on_with(tmp_path: Path, change: bytes) -> None:
    Ledger(tmp_path, "sb_a").close()
    path = tmp_path / "ledger" / "sb_a" / "0000.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:-20] + change + content[-20:])
    if not change:
        Ledger(tmp_path, "sb_a").close()
        return
    with pytest.raises(HostError, match="damaged"):
        Ledger(tmp_path, "sb_a")
    assert path.read_bytes() == content[:-20] + change + content[-20:]


def test_a_ledger_of_another_is_not_gone_on_with(tmp_path: Path) -> None:
    Ledger(tmp_path, "sb_b").close()
    os.rename(tmp_path / "ledger" / "sb_b", tmp_path / "ledger" / "sb_a")
    with pytest.raises(HostError, match="sb_b"):
        Ledger(tmp_path, "sb_a")
