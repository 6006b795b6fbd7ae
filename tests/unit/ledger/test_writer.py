"""The writer: chained, private, alone, quick, and honest about what it could not write."""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cloister.errors import CloisterError, Exhausted, HostError, RequestError
from cloister.ledger import (
    Closed,
    Keeping,
    Ledger,
    Lost,
    Paused,
    Payload,
    ProcessEnded,
    ProcessStarted,
    Recovered,
    Retired,
    Trace,
)
from cloister.ledger.entry import NOTHING
from cloister.ledger.reading import Fault, read_entries, verify_ledger
from cloister.ledger.shelf import Shelf, ShortWrite, is_written

Make = Callable[[int], Payload]


def test_each_entry_names_the_hash_of_the_one_before(tmp_path: Path, process: Make) -> None:
    with Ledger(tmp_path, "sb_a") as ledger:
        numbers = [ledger.write(process(number)) for number in range(5)]
    entries = list(read_entries(tmp_path, "sb_a"))
    assert numbers == [1, 2, 3, 4, 5]
    assert [entry.sequence for entry in entries] == list(range(len(entries)))
    assert entries[0].before == NOTHING
    assert all(b.before == a.hash for a, b in itertools.pairwise(entries))
    assert [entry.kind for entry in entries[-2:]] == ["ledger.closed", "ledger.checkpoint"]


def test_time_is_wall_and_monotonic_and_the_trace_is_kept(tmp_path: Path) -> None:
    trace, other = Trace("ab" * 16, "cd" * 8, 1), Trace("ab" * 16, "ef" * 8, 1)
    before = time.time_ns(), time.monotonic_ns()
    with Ledger(tmp_path, "sb_a", trace=trace) as ledger:
        ledger.write(Paused())
        ledger.write(Paused(), trace=other)
    after = time.time_ns(), time.monotonic_ns()
    _, first, second, *_ = read_entries(tmp_path, "sb_a")
    assert before[0] <= first.time_ns <= after[0]
    assert before[1] <= first.monotonic_ns <= after[1]
    assert (first.trace, second.trace) == (trace, other)


def test_begin_and_end_share_the_number_of_the_begin(tmp_path: Path, process: Make) -> None:
    with Ledger(tmp_path, "sb_a") as ledger:
        span = ledger.begin(process(1))
        ledger.write(Paused(), span=span)
        ledger.end(span, ProcessEnded("kernel"))
        ledger.begin(process(2))
    spans = [entry.span for entry in read_entries(tmp_path, "sb_a")]
    assert spans[1:5] == [1, 1, 1, 4]
    report = verify_ledger(tmp_path, "sb_a")
    assert [(begun.sequence, begun.kind) for begun in report.unfinished] == [(4, "process.started")]


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        Ledger(tmp_path / "state", "sb_a").close()
    finally:
        os.umask(previous)
    for path in (tmp_path / "state").rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        public = path.name == "ledger.pub"
        assert mode == (0o700 if path.is_dir() else 0o644 if public else 0o600), path
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_a_directory_that_others_can_enter_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "ledger" / "sb_a").mkdir(parents=True)
    (tmp_path / "ledger" / "sb_a").chmod(0o755)
    Ledger(tmp_path, "sb_a").close()
    assert stat.S_IMODE((tmp_path / "ledger" / "sb_a").stat().st_mode) == 0o700


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"")
    (tmp_path / "ledger" / "sb_a").mkdir(parents=True)
    (tmp_path / "ledger" / "sb_a" / "0000.jsonl").symlink_to(target)
    with pytest.raises(CloisterError):
        Ledger(tmp_path, "sb_a")
    assert target.read_bytes() == b""


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "a\n", "x" * 64, ".hidden"])
def test_a_name_that_is_no_name_makes_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError):
        Ledger(tmp_path, name)
    assert not (tmp_path / "ledger").exists()


def test_there_is_one_writer_at_a_time(tmp_path: Path) -> None:
    directory = tmp_path / "ledger" / "sb_a"
    with Ledger(tmp_path, "sb_a"):
        assert is_written(directory)
        with pytest.raises(HostError, match="being written already"):
            Ledger(tmp_path, "sb_a")
        Ledger(tmp_path, "sb_b").close()
    assert not is_written(directory)
    Ledger(tmp_path, "sb_a").close()
    assert verify_ledger(tmp_path, "sb_a").holds


def test_a_forked_child_lets_go_of_it(tmp_path: Path) -> None:
    with Ledger(tmp_path, "sb_a") as ledger:
        child = os.fork()
        if child == 0:
            try:
                ledger.write(Paused())
            except HostError:
                ledger.close()
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        ledger.write(Paused())
    report = verify_ledger(tmp_path, "sb_a")
    assert report.holds and report.entries == 4


def test_threads_do_not_tear_the_chain(tmp_path: Path, process: Make) -> None:
    with Ledger(tmp_path, "sb_a") as ledger:

        def work() -> None:
            for number in range(200):
                ledger.end(ledger.begin(process(number)), ProcessEnded("kernel"))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    report = verify_ledger(tmp_path, "sb_a")
    assert report.holds and report.unfinished_count == 0
    kinds = [entry.kind for entry in read_entries(tmp_path, "sb_a")]
    assert kinds.count("process.started") == kinds.count("process.ended") == 800


def test_files_are_turned_by_size_and_verified_as_one(tmp_path: Path, process: Make) -> None:
    with Ledger(tmp_path, "sb_a", keeping=Keeping(file_bytes=4096)) as ledger:
        for number in range(100):
            ledger.write(process(number))
    sizes = [path.stat().st_size for path in sorted((tmp_path / "ledger" / "sb_a").iterdir())]
    assert len(sizes) > 5 and max(sizes) < 8192
    report = verify_ledger(tmp_path, "sb_a")
    assert report.holds and report.files == len(sizes)


def test_old_files_are_removed_only_with_an_entry_that_says_so(
    tmp_path: Path, process: Make
) -> None:
    with Ledger(tmp_path, "sb_a", keeping=Keeping(file_bytes=4096)) as ledger:
        for number in range(100):
            ledger.write(process(number))
        removed = ledger.retire(keep_bytes=10_000)
        assert removed > 2 and ledger.retire(keep_bytes=10_000) == 0
        ledger.write(process(100))
    report = verify_ledger(tmp_path, "sb_a")
    assert report.holds, report.findings
    assert [e for e in read_entries(tmp_path, "sb_a") if isinstance(e.payload, Retired)]
    oldest = min((tmp_path / "ledger" / "sb_a").iterdir())
    oldest.unlink()
    assert Fault.MISSING in {found.fault for found in verify_ledger(tmp_path, "sb_a").findings}


def test_a_closed_ledger_can_be_gone_on_with(tmp_path: Path, process: Make) -> None:
    for number in range(3):
        with Ledger(tmp_path, "sb_a") as ledger:
            ledger.write(process(number))
    report = verify_ledger(tmp_path, "sb_a")
    assert report.holds and report.recovered == 0 and report.is_closed


def test_nothing_is_written_after_closing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "sb_a")
    ledger.close()
    ledger.close()
    with pytest.raises(HostError, match="closed"):
        ledger.write(Paused())


def test_a_wrong_payload_is_the_callers_error_and_leaves_no_trace(tmp_path: Path) -> None:
    with Ledger(tmp_path, "sb_a") as ledger:
        with pytest.raises(RequestError):
            ledger.write(ProcessStarted(("a",), "api", "host", pid=1 << 70))
        ledger.write(Paused())
        assert ledger.lost == 0
    assert verify_ledger(tmp_path, "sb_a").holds


def test_an_entry_is_in_the_kernels_hands_when_write_returns(tmp_path: Path, process: Make) -> None:
    with Ledger(tmp_path, "sb_a") as ledger:
        ledger.write(process(1))
        assert [e.kind for e in read_entries(tmp_path, "sb_a")][-1] == "process.started"


@pytest.mark.parametrize("durable", [True, False])
def test_only_a_durable_entry_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    synced: list[str] = []
    really = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        really(fd)

    with Ledger(tmp_path, "sb_a") as ledger:
        monkeypatch.setattr(os, "fsync", fsync)
        ledger.write(Paused(), durable=durable)
        directory = tmp_path / "ledger" / "sb_a"
        wanted = [str(directory / "0000.jsonl"), str(directory), str(directory.parent)]
        assert synced == (wanted if durable else [])
        monkeypatch.undo()


async def test_many_who_wait_for_the_disk_share_one_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger(tmp_path, "sb_a") as ledger:
        waits = 0
        really = ledger.sync

        def sync() -> None:
            nonlocal waits
            waits += 1
            really()

        monkeypatch.setattr(ledger, "sync", sync)

        async def decide() -> None:
            ledger.write(Paused())
            await ledger.settle()

        await asyncio.gather(*(decide() for _ in range(50)))
        assert 1 <= waits <= 3


async def test_a_wait_that_fails_is_told_to_all_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger(tmp_path, "sb_a") as ledger:
        ledger.write(Paused())

        def sync() -> None:
            raise HostError("no")

        monkeypatch.setattr(ledger, "sync", sync)
        found = await asyncio.gather(ledger.settle(), ledger.settle(), return_exceptions=True)
        assert [type(one) for one in found] == [HostError, HostError]


def failing(monkeypatch: pytest.MonkeyPatch, keep_bytes: int | None) -> None:
    """Make the disk full: nothing is written, or only the first bytes of a line are."""
    append = Shelf.append

    def full(shelf: Shelf, data: bytes) -> None:
        if not keep_bytes:
            raise OSError(28, "No space left on device")
        append(shelf, data[:keep_bytes])
        raise ShortWrite(data[:keep_bytes])

    monkeypatch.setattr(Shelf, "append", full)


@pytest.mark.parametrize("keep_bytes", [None, 1, 40])
def test_what_is_lost_on_a_full_disk_is_counted_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: Make, keep_bytes: int | None
) -> None:
    troubles: list[CloisterError] = []
    with Ledger(tmp_path, "sb_a", on_trouble=troubles.append) as ledger:
        ledger.write(process(0))
        failing(monkeypatch, keep_bytes)
        assert [ledger.write(process(number)) for number in range(1, 4)] == [None] * 3
        with pytest.raises(Exhausted) as caught:
            ledger.write(Paused(), durable=True)
        assert caught.value.limit == "disk"
        monkeypatch.undo()
        assert len(troubles) == 1 and ledger.lost == 4
        assert ledger.write(process(4)) is not None
        assert ledger.lost == 4
    entries = list(read_entries(tmp_path, "sb_a"))
    (lost,) = [entry.payload for entry in entries if isinstance(entry.payload, Lost)]
    assert lost.count == 4 and lost.first_ns <= lost.last_ns
    assert [e.payload for e in entries if isinstance(e.payload, Closed)] == [Closed(4, 0)]
    report = verify_ledger(tmp_path, "sb_a")
    assert report.holds, report.findings
    assert report.lost == 4 and report.recovered == (0 if keep_bytes is None else 1)


def test_a_tick_tells_of_losses_when_nothing_else_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger(tmp_path, "sb_a") as ledger:
        failing(monkeypatch, None)
        ledger.write(Paused())
        ledger.tick()
        monkeypatch.undo()
        ledger.tick()
        assert [e.kind for e in read_entries(tmp_path, "sb_a")][-1] == "ledger.lost"
    ledger.tick()


def test_no_ledger_is_opened_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, None)
    with pytest.raises(Exhausted):
        Ledger(tmp_path, "sb_a")
    monkeypatch.undo()
    Ledger(tmp_path, "sb_a").close()
    assert verify_ledger(tmp_path, "sb_a").holds


def test_a_limit_of_the_kernel_tears_a_line_and_the_next_file_seals_it(tmp_path: Path) -> None:
    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))

    source = (
        "import sys\nfrom pathlib import Path\nimport resource\n"
        "from cloister.ledger import *\n"
        "ledger = Ledger(Path(sys.argv[1]), 'sb_a')\n"
        "done = [ledger.write(ProcessStarted(('x' * 90,), 'api', 'host')) for _ in range(20)]\n"
        "assert None in done, done\n"
        "ledger.close()\n"
    )
    subprocess.run([sys.executable, "-c", source, tmp_path], preexec_fn=limited, check=True)
    report = verify_ledger(tmp_path, "sb_a")
    assert report.holds, report.findings
    written = sum(e.kind == "process.started" for e in read_entries(tmp_path, "sb_a"))
    assert written + report.lost == 20 and report.lost > 0
    sealed = [e.payload for e in read_entries(tmp_path, "sb_a") if isinstance(e.payload, Recovered)]
    assert sealed and sealed[0].torn


def test_an_entry_takes_less_than_30_microseconds(tmp_path: Path, process: Make) -> None:
    started, ended = process(1), ProcessEnded("kernel", 1, 0)
    with Ledger(tmp_path, "sb_a") as ledger:
        best = float("inf")
        for _ in range(20):
            # The processor's time of this thread: the machine may be busy with other things.
            begin = time.thread_time()
            for _ in range(250):
                ledger.end(ledger.begin(started), ended)
            best = min(best, (time.thread_time() - begin) / 500)
    assert best < 30e-6, f"{best * 1e6:.1f} µs"
