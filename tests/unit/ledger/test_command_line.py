"""`cloister ledger` and `cloister receipt`: what they print, and what their exit codes say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from cloister.cli.ledger import ledger as ledger_command
from cloister.cli.receipt import receipt as receipt_command
from cloister.errors import CloisterError, NotFound, RequestError
from cloister.ledger import Keeping, Ledger, Planned, ProcessStarted

HOSTILE = "\x1b]52;c;x\x07\r\n\u202e<b>"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path))
    with Ledger(tmp_path, "sb_a", keeping=Keeping(checkpoint_entries=5)) as ledger:
        ledger.write(Planned("p", "q", "namespace", label="task-42"))
        for number in range(20):
            ledger.write(ProcessStarted((HOSTILE, str(number)), "api", "host", pid=number))
    return tmp_path


def run(command: click.Command, *arguments: str) -> int:
    code = command.main([*arguments], prog_name="cloister", standalone_mode=False)
    return code if isinstance(code, int) else 0


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_show_prints_one_harmless_line_an_entry(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(ledger_command, "show", "task-42")
    lines = shown(capsys)
    assert len(lines) == 28 and all(line.isprintable() for line in lines)
    assert "process.started" in lines[3] and "\\x1b" in lines[3]


def test_show_takes_a_kind_and_a_place(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(ledger_command, "show", "sb_a", "--kind", "process.started", "--after", "20", "--json")
    found = [json.loads(line) for line in shown(capsys)]
    assert {one["kind"] for one in found} == {"process.started"}
    assert min(one["sequence"] for one in found) > 20
    with pytest.raises(RequestError, match=r"process\.started"):
        run(ledger_command, "show", "sb_a", "--kind", "proces")


def test_tail_prints_the_last_entries(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for count in (0, 3, 1000):
        run(ledger_command, "tail", "sb_a", "--lines", str(count), "--json")
        found = [json.loads(line)["sequence"] for line in shown(capsys)]
        assert found == list(range(28))[28 - min(count, 28) :]


def test_tail_follows_what_is_written(state: Path) -> None:
    source = (
        "from cloister.cli.ledger import ledger\n"
        "ledger.main(['tail', 'sb_b', '--follow', '--json'], standalone_mode=False)\n"
    )
    ledger = Ledger(state, "sb_b")
    following = subprocess.Popen(
        [sys.executable, "-c", source],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "CLOISTER_STATE": str(state)},
    )
    try:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["kind"] == "ledger.opened"
        ledger.write(ProcessStarted(("a",), "api", "host"))
        assert json.loads(following.stdout.readline())["kind"] == "process.started"
    finally:
        following.kill()
        following.communicate()
        ledger.close()


def test_list_names_every_ledger(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(ledger_command, "list")
    assert shown(capsys) == ["sb_a"]
    run(ledger_command, "list", "--json")
    assert shown(capsys) == ['["sb_a"]']


@pytest.mark.parametrize("touched", [True, False])
def test_verify_says_whether_it_holds(
    state: Path, capsys: pytest.CaptureFixture[str], touched: bool
) -> None:
    path = state / "ledger" / "sb_a" / "0000.jsonl"
    if touched:
        path.write_bytes(path.read_bytes().replace(b'"pid":7', b'"pid":8'))
    code = run(ledger_command, "verify", "task-42")
    lines = shown(capsys)
    assert code == (1 if touched else 0)
    assert any("edited" in line and "0000.jsonl line" in line for line in lines) == touched
    code = run(ledger_command, "verify", "task-42", "--json")
    report = json.loads(capsys.readouterr().out)
    assert report["holds"] is not touched and len(report["findings"]) == int(touched)


def test_verify_against_a_kept_checkpoint_finds_a_cut(
    state: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path_factory.mktemp("elsewhere") / "checkpoint"
    assert run(ledger_command, "verify", "sb_a", "--keep", str(kept)) == 0
    assert run(ledger_command, "verify", "sb_a", "--against", str(kept)) == 0
    path = state / "ledger" / "sb_a" / "0000.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:10]))
    (state / "checkpoints" / "sb_a.jsonl").unlink()
    assert run(ledger_command, "verify", "sb_a") == 0
    capsys.readouterr()
    assert run(ledger_command, "verify", "sb_a", "--against", str(kept)) == 1
    assert "truncated" in capsys.readouterr().out
    for wrong in ("/no/such/file", str(path)):
        with pytest.raises(RequestError):
            run(ledger_command, "verify", "sb_a", "--against", wrong)


def test_verify_with_another_key_does_not_believe_ours(
    state: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    Ledger(other, "sb_x").close()
    ours, theirs = state / "keys" / "ledger.pub", other / "keys" / "ledger.pub"
    assert run(ledger_command, "verify", "sb_a", "--key", str(ours)) == 0
    assert run(ledger_command, "verify", "sb_a", "--key", str(theirs)) == 1


def test_export_writes_each_form(state: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    run(ledger_command, "export", "sb_a")
    assert capsysbinary.readouterr().out == (state / "ledger/sb_a/0000.jsonl").read_bytes()
    for form in ("ocsf", "otlp"):
        run(ledger_command, "export", "sb_a", "--as", form)
        assert all(json.loads(line) for line in capsysbinary.readouterr().out.splitlines())
    with pytest.raises(RequestError):
        run(ledger_command, "export", "sb_a", "--as", "csv")


def test_a_reader_that_leaves_is_no_error(state: Path) -> None:
    source = (
        "import sys\nfrom cloister.cli.ledger import ledger\n"
        "sys.exit(ledger.main(['show', 'sb_a'] , standalone_mode=False))\n"
    )
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run(
        [sys.executable, "-c", source],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "CLOISTER_STATE": str(state)},
    )
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_a_sandbox_without_a_ledger_is_named(state: Path) -> None:
    for command in ("show", "tail", "verify", "export"):
        with pytest.raises(NotFound, match="sb_q"):
            run(ledger_command, command, "sb_q")
    with pytest.raises(NotFound):
        run(receipt_command, "sb_q")


def test_a_receipt_is_printed_kept_and_verified(
    state: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(receipt_command, "task-42") == 0
    text = capsys.readouterr().out
    assert "signed, and the signature holds" in text and "processes started" in text
    run(receipt_command, "task-42", "--as", "html")
    assert capsys.readouterr().out.startswith("<!doctype html>")
    run(receipt_command, "task-42", "--as", "json")
    sealed = capsys.readouterr().out
    file = tmp_path_factory.mktemp("kept") / "receipt.json"
    file.write_text(sealed)
    assert run(receipt_command, "--verify", str(file)) == 0
    assert "signed, and the signature holds" in capsys.readouterr().out
    envelope = json.loads(sealed)
    envelope["signatures"] = []
    file.write_text(json.dumps(envelope))
    assert run(receipt_command, "--verify", str(file)) == 1
    assert "NOT SIGNED" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["task-42", "--verify", "/dev/null"],
        ["task-42", "--as", "pdf"],
        ["task-42", "--key", "/dev/null"],
        ["--verify", "/no/such/file"],
        ["--verify", "/dev/null"],
    ],
)
def test_a_wrong_call_is_refused(state: Path, arguments: list[str]) -> None:
    with pytest.raises(CloisterError):
        run(receipt_command, *arguments)
