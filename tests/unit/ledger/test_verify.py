"""Verification: every change to a ledger is found, at its place, and an untouched one is not."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cloister.errors import NotFound, RequestError
from cloister.ledger import Keeping, Ledger, Paused, Payload, ProcessEnded
from cloister.ledger.entry import MAXIMUM_LINE_BYTES
from cloister.ledger.reading import (
    Fault,
    Report,
    parse_anchor,
    read_anchors,
    read_entries,
    trusted_keys,
    verify_ledger,
)

SANDBOX = "sb_abcdefghijklmnopqrstuvwxyz"
Make = Callable[[int], Payload]


@contextmanager
def copied(whole: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        state = Path(directory) / "state"
        shutil.copytree(whole, state)
        yield state


def files_of(state: Path) -> list[Path]:
    return sorted((state / "ledger" / SANDBOX).iterdir())


def faults(report: Report) -> set[Fault]:
    return {finding.fault for finding in report.findings}


def verify(state: Path) -> Report:
    return verify_ledger(state, SANDBOX)


def test_an_untouched_ledger_holds_and_is_signed(whole: Path) -> None:
    report = verify(whole)
    assert report.holds and report.is_signed and report.is_closed and not report.is_written
    assert report.signed_through == (report.last_sequence or 0) - 1
    assert report.after_signature == 0 and report.verified >= 4
    assert report.entries == (report.last_sequence or 0) + 1 and report.files >= 3
    assert "signed up to" in report.summary()


@given(data=st.data())
def test_any_flipped_bit_is_found(whole: Path, data: st.DataObject) -> None:
    with copied(whole) as state:
        path = data.draw(st.sampled_from(files_of(state)))
        content = bytearray(path.read_bytes())
        bit = data.draw(st.integers(0, len(content) * 8 - 1))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        report = verify(state)
        assert not report.holds
        line = bytes(content[: bit // 8]).count(b"\n") + 1
        near = {(f.file, f.line + d) for f in report.findings for d in (-1, 0, 1)}
        assert (path.name, line) in near or (path.name, 0) in near, report.findings


@given(data=st.data())
def test_any_removed_line_is_found(whole: Path, data: st.DataObject) -> None:
    with copied(whole) as state:
        path = data.draw(st.sampled_from(files_of(state)))
        lines = path.read_bytes().splitlines(keepends=True)
        gone = data.draw(st.integers(0, len(lines) - 1))
        number = json.loads(lines[gone])["entry"]["sequence"]
        path.write_bytes(b"".join(lines[:gone] + lines[gone + 1 :]))
        report = verify(state)
        assert faults(report) & {Fault.MISSING, Fault.TRUNCATED}
        if path != files_of(state)[-1] or gone < len(lines) - 1:
            assert any(str(number) in finding.message for finding in report.findings)


@given(data=st.data())
def test_any_two_swapped_lines_are_found(whole: Path, data: st.DataObject) -> None:
    with copied(whole) as state:
        path = data.draw(st.sampled_from(files_of(state)))
        lines = path.read_bytes().splitlines(keepends=True)
        one, other = data.draw(st.tuples(*[st.integers(0, len(lines) - 1)] * 2))
        assume(one != other)
        lines[one], lines[other] = lines[other], lines[one]
        path.write_bytes(b"".join(lines))
        assert Fault.REORDERED in faults(verify(state))


@given(data=st.data())
def test_any_doubled_line_is_found(whole: Path, data: st.DataObject) -> None:
    with copied(whole) as state:
        path = data.draw(st.sampled_from(files_of(state)))
        lines = path.read_bytes().splitlines(keepends=True)
        one, at = data.draw(st.integers(0, len(lines) - 1)), data.draw(st.integers(0, len(lines)))
        lines.insert(at, lines[one])
        path.write_bytes(b"".join(lines))
        assert faults(verify(state)) & {Fault.DUPLICATED, Fault.REORDERED}


@given(data=st.data())
def test_any_truncation_is_found(whole: Path, data: st.DataObject) -> None:
    with copied(whole) as state:
        paths = files_of(state)
        index = data.draw(st.integers(0, len(paths) - 1))
        content = paths[index].read_bytes()
        cut = data.draw(st.integers(0, len(content) - 1))
        paths[index].write_bytes(content[:cut])
        for later in paths[index + 1 :]:
            later.unlink()
        assert faults(verify(state)) & {Fault.TRUNCATED, Fault.TORN}


@given(data=st.data())
def test_a_clean_cut_after_the_last_checkpoint_is_counted(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        state = Path(directory)
        ledger = Ledger(state, SANDBOX, keeping=Keeping(checkpoint_entries=10))
        for _ in range(data.draw(st.integers(0, 40))):
            ledger.write(Paused())
        ledger.abandon()
        (path,) = files_of(state)
        lines = path.read_bytes().splitlines(keepends=True)
        signed = [n for n, line in enumerate(lines) if b"ledger.checkpoint" in line]
        keep = data.draw(st.integers(signed[-1] + 1 if signed else 1, len(lines)))
        path.write_bytes(b"".join(lines[:keep]))
        report = verify(state)
        assert report.holds and not report.is_closed
        after = keep - (signed[-1] + 1 if signed else 0)
        assert report.after_signature == after
        if signed:
            assert f"{after} entries after the last signature" in report.summary()


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_arbitrary_bytes_never_hold_and_never_break_it(parts: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        state = Path(directory)
        place = state / "ledger" / SANDBOX
        place.mkdir(parents=True)
        (place / "0000.jsonl").write_bytes(b"\n".join(parts))
        assert not verify(state).holds


@given(data=st.data(), junk=st.binary(min_size=1, max_size=60))
def test_anything_slipped_in_is_found(whole: Path, data: st.DataObject, junk: bytes) -> None:
    with copied(whole) as state:
        path = data.draw(st.sampled_from(files_of(state)))
        content = path.read_bytes()
        at = data.draw(st.integers(0, len(content)))
        changed = content[:at] + junk + content[at:]
        assume(changed != content)
        path.write_bytes(changed)
        assert not verify(state).holds


def forge(lines: list[bytes], at: int, change: Callable[[dict[str, object]], None]) -> list[bytes]:
    """Change one entry and make every hash after it right again, as one with the files could."""
    import hashlib

    from cloister.ledger.shape import canonical

    before: str | None = None
    forged = []
    for number, line in enumerate(lines):
        entry = json.loads(line)["entry"]
        if number == at:
            change(entry)
        if before is not None:
            entry["before"] = before
        body = canonical(entry)
        before = hashlib.sha256(body).hexdigest()
        forged.append(b'{"entry":' + body + b',"hash":"' + before.encode() + b'"}\n')
    return forged


def one_file(state: Path, count: int = 20) -> tuple[Path, list[bytes]]:
    with Ledger(state, SANDBOX, keeping=Keeping(checkpoint_entries=6)) as ledger:
        for _ in range(count):
            ledger.write(Paused())
    (path,) = files_of(state)
    return path, path.read_bytes().splitlines(keepends=True)


def test_a_whole_chain_written_anew_is_found_by_its_signatures(tmp_path: Path) -> None:
    path, lines = one_file(tmp_path)
    path.write_bytes(b"".join(forge(lines, 3, lambda entry: None)))
    assert verify(tmp_path).holds
    path.write_bytes(b"".join(forge(lines, 3, lambda entry: entry.update(time_ns=1))))
    report = verify(tmp_path)
    assert faults(report) & {Fault.BAD_SIGNATURE}
    # Even with the second place removed as well, the signatures in it do not fit.
    (tmp_path / "checkpoints" / f"{SANDBOX}.jsonl").unlink()
    assert faults(verify(tmp_path)) & {Fault.BAD_SIGNATURE}


def test_a_changed_entry_is_named_with_its_place(tmp_path: Path) -> None:
    path, lines = one_file(tmp_path)
    lines[4] = lines[4].replace(b"sandbox.paused", b"sandbox.Paused")
    path.write_bytes(b"".join(lines))
    (finding,) = verify(tmp_path).findings
    assert (finding.fault, finding.file, finding.line) == (Fault.EDITED, "0000.jsonl", 5)
    assert finding.sequence == 4 and str(finding).startswith("0000.jsonl line 5 (entry 4): edited")


def test_a_changed_entry_with_its_own_hash_made_right_is_found_at_the_next(tmp_path: Path) -> None:
    path, lines = one_file(tmp_path)
    lines[4] = forge(lines, 4, lambda entry: entry.update(time_ns=1))[4]
    path.write_bytes(b"".join(lines))
    (finding,) = verify(tmp_path).findings
    assert (finding.fault, finding.line, finding.sequence) == (Fault.EDITED, 6, 5)


def test_a_foreign_file_spliced_in_is_found(tmp_path: Path, whole: Path) -> None:
    with copied(whole) as state:
        with Ledger(tmp_path, "sb_other") as other:
            other.write(Paused())
        source = tmp_path / "ledger" / "sb_other" / "0000.jsonl"
        shutil.copy(source, files_of(state)[1])
        report = verify(state)
        assert Fault.FOREIGN in faults(report)
        assert (files_of(state)[1].name, 1) in {(f.file, f.line) for f in report.findings}


def test_a_file_of_another_run_under_the_same_name_is_found(tmp_path: Path, whole: Path) -> None:
    with Ledger(tmp_path, SANDBOX, keeping=Keeping(file_bytes=6000)) as other:
        for _ in range(40):
            other.write(Paused())
    with copied(whole) as state:
        shutil.copy(files_of(tmp_path)[1], files_of(state)[1])
        assert faults(verify(state)) & {Fault.FOREIGN, Fault.REORDERED, Fault.MISSING}


def test_a_missing_file_is_found(whole: Path) -> None:
    with copied(whole) as state:
        gone = files_of(state)[1]
        gone.unlink()
        report = verify(state)
        assert Fault.MISSING in faults(report)
        assert any("is not there" in finding.message for finding in report.findings)


def test_an_unknown_key_is_found_and_a_named_one_is_believed(tmp_path: Path, whole: Path) -> None:
    ours = trusted_keys(whole)
    Ledger(tmp_path, "sb_other").close()
    theirs = trusted_keys(tmp_path)
    assert verify_ledger(whole, SANDBOX, keys=ours).holds
    report = verify_ledger(whole, SANDBOX, keys=theirs)
    assert faults(report) == {Fault.UNKNOWN_KEY} and not report.is_signed


def test_a_ledger_without_signatures_is_found_where_there_is_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setattr("cloister.ledger.keys.can_sign", lambda: False)
        one_file(tmp_path)
    report = verify(tmp_path)
    assert report.holds and not report.is_signed and report.unsigned > 0
    assert "none is signed" in report.summary()
    Ledger(tmp_path, "sb_other").close()
    assert faults(verify(tmp_path)) == {Fault.UNSIGNED}


def test_signatures_that_cannot_be_checked_here_are_said_to_be_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_file(tmp_path)
    monkeypatch.setattr("cloister.ledger.checkpoint.can_sign", lambda: False)
    report = verify(tmp_path)
    assert report.holds and report.unchecked > 0 and not report.is_signed
    assert "could not be checked" in report.summary()


def test_a_kept_checkpoint_finds_a_cut_that_took_the_second_place_too(tmp_path: Path) -> None:
    path, lines = one_file(tmp_path)
    second = tmp_path / "checkpoints" / f"{SANDBOX}.jsonl"
    kept = list(read_anchors(second))[-1]
    assert verify_ledger(tmp_path, SANDBOX, against=[kept]).holds
    path.write_bytes(b"".join(lines[:9]))
    assert Fault.TRUNCATED in faults(verify(tmp_path))
    second.unlink()
    assert verify(tmp_path).holds
    (finding,) = verify_ledger(tmp_path, SANDBOX, against=[kept]).findings
    assert finding.fault is Fault.TRUNCATED and str(kept.sequence) in finding.message


def test_a_kept_checkpoint_finds_a_ledger_begun_anew(tmp_path: Path) -> None:
    one_file(tmp_path)
    kept = list(read_anchors(tmp_path / "checkpoints" / f"{SANDBOX}.jsonl"))[-1]
    shutil.rmtree(tmp_path / "ledger")
    shutil.rmtree(tmp_path / "checkpoints")
    one_file(tmp_path, 40)
    assert verify(tmp_path).holds
    assert faults(verify_ledger(tmp_path, SANDBOX, against=[kept])) == {Fault.EDITED}


def test_a_kept_checkpoint_that_is_forged_or_of_another_is_not_taken(tmp_path: Path) -> None:
    from dataclasses import replace

    one_file(tmp_path)
    kept = list(read_anchors(tmp_path / "checkpoints" / f"{SANDBOX}.jsonl"))[-1]
    for wrong, fault in (
        (replace(kept, sequence=kept.sequence + 1000), Fault.BAD_SIGNATURE),
        (replace(kept, signature="!"), Fault.BAD_SIGNATURE),
        (replace(kept, key="00"), Fault.UNKNOWN_KEY),
        (replace(kept, sandbox="sb_other"), Fault.FOREIGN),
    ):
        assert faults(verify_ledger(tmp_path, SANDBOX, against=[wrong])) == {fault}


@given(st.binary(max_size=100) | st.from_type(dict).map(lambda d: json.dumps(str(d)).encode()))
def test_arbitrary_bytes_are_no_checkpoint(line: bytes) -> None:
    with pytest.raises(RequestError):
        parse_anchor(line)


def test_a_begin_without_an_end_shows(tmp_path: Path, process: Make) -> None:
    with Ledger(tmp_path, SANDBOX) as ledger:
        ledger.end(ledger.begin(process(1)), ProcessEnded("kernel"))
        assert verify(tmp_path).unfinished_count == 0
        ledger.begin(process(2))
    report = verify(tmp_path)
    assert report.unfinished_count == 1 and report.holds


def test_a_ledger_being_written_holds(tmp_path: Path) -> None:
    with Ledger(tmp_path, SANDBOX) as ledger:
        ledger.write(Paused())
        (path,) = files_of(tmp_path)
        with path.open("ab") as file:
            file.write(b'{"entry":')
        report = verify(tmp_path)
        assert report.holds and report.is_written and not report.is_closed
        ledger.abandon()
    assert faults(verify(tmp_path)) == {Fault.TORN}


def test_a_clock_that_is_set_back_is_noted_and_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    with Ledger(tmp_path, SANDBOX) as ledger:
        ledger.write(Paused())
        monkeypatch.setattr(time, "time_ns", lambda: 1)
        ledger.write(Paused())
        monkeypatch.undo()
        ledger.write(Paused())
    report = verify(tmp_path)
    assert report.holds and report.clock_steps_back == 1


def test_a_line_longer_than_any_entry_is_found_and_the_rest_still_checked(tmp_path: Path) -> None:
    path, lines = one_file(tmp_path)
    lines.insert(3, b"x" * (MAXIMUM_LINE_BYTES * 2) + b"\n")
    path.write_bytes(b"".join(lines))
    (finding,) = verify(tmp_path).findings
    assert (finding.fault, finding.line) == (Fault.MALFORMED, 4)


def test_a_thousand_faults_are_counted_and_not_all_listed(tmp_path: Path) -> None:
    path, lines = one_file(tmp_path)
    path.write_bytes(b"x\n" * 1000 + b"".join(lines))
    report = verify(tmp_path)
    assert report.findings_count >= 1000 and len(report.findings) == 100


def test_a_ledger_that_is_not_there_is_said_not_to_be(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        verify(tmp_path)
    with pytest.raises(NotFound):
        list(read_entries(tmp_path, SANDBOX))
