"""Receipts: they say what the ledger says, what could not be seen, and cannot be changed unseen."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import HostError, RequestError
from cloister.ledger import (
    ApprovalAnswered,
    ApprovalAsked,
    Connected,
    ConnectionClosed,
    FilesChanged,
    Launched,
    Ledger,
    LimitHit,
    NameAsked,
    Planned,
    ProcessEnded,
    ProcessStarted,
    Requested,
    Responded,
    SecretBlocked,
    SecretUsed,
    SnapshotTaken,
    Stopped,
    signer_for,
)
from cloister.ledger.reading import (
    CheckedReceipt,
    make_receipt,
    receipt_html,
    receipt_text,
    seal_receipt,
    trusted_keys,
    verify_receipt,
)
from cloister.ledger.text import readable
from cloister.policy import Effect

UNSEEN = "what a program does between two system calls is not seen"
HOSTILE = '<script>alert(1)</script>\x1b]52;c;x\x07\n"\u202e'


def record(state: Path, hostile: str = "a.example") -> None:
    with Ledger(state, "sb_a") as ledger:
        life = ledger.begin(Planned("sha256:p", "q", "namespace", "sha256:i", "snap-0", "task"))
        ledger.write(Launched("sha256:p", "q", ("uid=0",), (UNSEEN,), "sha256:i"), span=life)
        shell = ledger.begin(ProcessStarted(("sh", hostile), "api", "host", pid=5))
        child = ledger.begin(ProcessStarted(("ls",), "inside", "guest", pid=6, parent_pid=5))
        ledger.end(child, ProcessEnded("kernel", 6, 1))
        ledger.end(shell, ProcessEnded("kernel", 5, 0))
        ledger.write(NameAsked("evil.example", "A", Effect.DENY, "default"))
        line = ledger.begin(Connected(hostile, 443, "tls", Effect.ALLOW, "web", "so", ()))
        asked = Requested(
            "GET", "https", hostile, 443, "/", Effect.ALLOW, "web", "so", (), line.sequence
        )
        ledger.end(ledger.begin(asked), Responded(10, 20, 200))
        ledger.end(line, ConnectionClosed(100, 200))
        ledger.write(SecretUsed("TOKEN", hostile, "header"))
        ledger.write(SecretBlocked("TOKEN", "evil.example", "body"))
        question = ledger.begin(ApprovalAsked(7, hostile, "sha256:d", "push", 99))
        ledger.end(question, ApprovalAnswered(7, "deny", "sha256:d", "anna"))
        ledger.begin(ApprovalAsked(8, "another", "sha256:e", "push", 99))
        ledger.write(FilesChanged(1, 2, 3, 400, "sha256:c", ("/a",), 1))
        ledger.write(SnapshotTaken("snap-1", "sealed"))
        ledger.write(LimitHit("memory", 1, 2))
        ledger.end(life, Stopped("stopped"))


def sealed(state: Path) -> bytes:
    return seal_receipt(make_receipt(state, "sb_a"), signer_for(state))


def test_it_says_what_the_ledger_says(tmp_path: Path) -> None:
    record(tmp_path)
    receipt = make_receipt(tmp_path, "sb_a", unseen=["a sentence of the caller"], diff="sha256:f")
    assert (receipt.plan, receipt.policy, receipt.image) == ("sha256:p", "q", "sha256:i")
    assert (receipt.label, receipt.base_snapshot, receipt.ending) == ("task", "snap-0", "stopped")
    assert receipt.snapshots == ("snap-1",)
    assert receipt.began_ns and receipt.ended_ns and receipt.began_ns <= receipt.ended_ns
    ran = receipt.processes
    assert (ran.started, ran.ended, ran.by_api, ran.failed, ran.guest_word) == (2, 2, 1, 1, 1)
    assert [one.exit_code for one in ran.first] == [0, 1]
    changes = receipt.changes
    assert (changes.added, changes.modified, changes.removed, changes.steps) == (1, 2, 3, 1)
    assert changes.diff == "sha256:f"
    (host,) = receipt.hosts
    # The request's bytes are inside those of its connection.
    assert (host.connections, host.requests, host.bytes_out, host.bytes_in) == (1, 1, 100, 200)
    (secret,) = receipt.secrets
    assert (secret.used, secret.blocked, secret.hosts) == (1, 1, ("a.example",))
    assert [(a.number, a.answer) for a in receipt.approvals] == [(7, "deny"), (8, "none yet")]
    assert {(d.kind, d.rule, d.count) for d in receipt.denials} == {
        ("egress.name", "default", 1),
        ("secret.blocked", "TOKEN", 1),
    }
    assert [(hit.limit, hit.count) for hit in receipt.limits] == [("memory", 2)]
    said = [readable(one) for one in receipt.coverage if not isinstance(one, tuple)]
    assert said[:2] == [UNSEEN, "a sentence of the caller"]
    assert "1 processes are known by the guest's word only" in said
    assert "1 hosts were spoken to in TLS that was passed through unread" in said


def test_it_is_an_in_toto_statement_in_a_signed_dsse_envelope(tmp_path: Path) -> None:
    record(tmp_path)
    envelope = json.loads(sealed(tmp_path))
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    statement = json.loads(base64.b64decode(envelope["payload"]))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    (subject,) = statement["subject"]
    assert subject["name"] == "ledger/sb_a" and len(subject["digest"]["sha256"]) == 64
    assert len(envelope["signatures"]) == 1


def test_a_signed_receipt_holds_and_reads_back_as_it_was(tmp_path: Path) -> None:
    record(tmp_path)
    checked = verify_receipt(sealed(tmp_path), trusted_keys(tmp_path))
    assert checked.holds and checked.receipt == make_receipt(tmp_path, "sb_a")


@given(data=st.data())
def test_no_bit_of_it_can_be_changed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    state = tmp_path_factory.getbasetemp() / "one-receipt"
    if not state.exists():
        record(state)
    content = bytearray(sealed(state))
    bit = data.draw(st.integers(0, len(content) * 8 - 1))
    content[bit // 8] ^= 1 << bit % 8
    try:
        checked = verify_receipt(bytes(content), trusted_keys(state))
    except RequestError:
        return
    # White space around JSON, and bits of base64 that stand for nothing, change nothing.
    assert not checked.holds or checked.receipt == make_receipt(state, "sb_a")


def test_a_receipt_of_an_unknown_key_or_of_none_does_not_hold(tmp_path: Path) -> None:
    record(tmp_path / "a")
    record(tmp_path / "b")
    theirs = trusted_keys(tmp_path / "b")
    assert verify_receipt(sealed(tmp_path / "a"), theirs).standing == "unknown key"
    bare = seal_receipt(make_receipt(tmp_path / "a", "sb_a"), None)
    checked = verify_receipt(bare, theirs)
    assert checked.standing == "unsigned" and not checked.holds
    assert "NOT SIGNED" in receipt_text(checked)


def test_a_checkpoints_signature_is_none_of_a_receipt(tmp_path: Path) -> None:
    record(tmp_path)
    anchor = json.loads((tmp_path / "checkpoints" / "sb_a.jsonl").read_text().splitlines()[-1])
    envelope = json.loads(sealed(tmp_path))
    envelope["signatures"][0]["sig"] = anchor["signature"]
    checked = verify_receipt(json.dumps(envelope).encode(), trusted_keys(tmp_path))
    assert checked.standing == "bad signature"


def resealed(state: Path, change: dict[str, Any]) -> bytes:
    envelope = json.loads(sealed(state))
    statement = json.loads(base64.b64decode(envelope["payload"]))
    envelope["payload"] = base64.b64encode(json.dumps({**statement, **change}).encode()).decode()
    return json.dumps(envelope).encode()


@pytest.mark.parametrize(
    "change",
    [
        {"_type": "https://in-toto.io/Statement/v0.1"},
        {"predicateType": "https://slsa.dev/provenance/v1"},
        {"subject": []},
        {"predicate": {}},
        {"extra": 1},
    ],
)
def test_what_is_no_receipt_is_refused_before_its_signature_matters(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    record(tmp_path)
    assert verify_receipt(resealed(tmp_path, {}), trusted_keys(tmp_path)).receipt
    with pytest.raises(RequestError):
        verify_receipt(resealed(tmp_path, change), trusted_keys(tmp_path))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_receipt(data: bytes) -> None:
    with pytest.raises(RequestError):
        verify_receipt(data, {})


def test_no_receipt_is_made_of_a_ledger_that_does_not_hold(tmp_path: Path) -> None:
    record(tmp_path)
    path = tmp_path / "ledger" / "sb_a" / "0000.jsonl"
    path.write_bytes(path.read_bytes().replace(b"stopped", b"Stopped"))
    with pytest.raises(HostError, match="does not hold"):
        make_receipt(tmp_path, "sb_a")


def test_hosts_without_end_are_summed_under_one_name(tmp_path: Path) -> None:
    with Ledger(tmp_path, "sb_a") as ledger:
        for number in range(1500):
            asked = Connected(f"h{number}.example", 443, "tcp", Effect.ALLOW, "web", "so", ())
            ledger.end(ledger.begin(asked), ConnectionClosed(1, 1))
    receipt = make_receipt(tmp_path, "sb_a")
    assert len(receipt.hosts) <= 1001
    assert sum(host.connections for host in receipt.hosts) == 1500
    assert sum(host.bytes_out for host in receipt.hosts) == 1500


class Reader(HTMLParser):
    """What a browser would make of a page: its tags with their attributes, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_hostile_text_is_only_text_on_the_page_and_on_the_terminal(tmp_path: Path) -> None:
    record(tmp_path / "hostile", HOSTILE)
    record(tmp_path / "harmless")
    pages = []
    for name in ("hostile", "harmless"):
        state = tmp_path / name
        checked = verify_receipt(sealed(state), trusted_keys(state))
        reader = Reader()
        reader.feed(receipt_html(checked))
        pages.append(reader)
        text = receipt_text(checked)
        assert all(character.isprintable() for character in text.replace("\n", ""))
    assert pages[0].tags == pages[1].tags and pages[0].attributes == pages[1].attributes
    assert "script" not in pages[0].tags and "<script>alert(1)</script>" in pages[0].text
    assert "\x1b" not in pages[0].text and "\u202e" not in pages[0].text
    assert "src" not in pages[0].attributes and "href" not in pages[0].attributes


def test_the_page_forbids_everything_it_does_not_need(tmp_path: Path) -> None:
    record(tmp_path)
    page = receipt_html(verify_receipt(sealed(tmp_path), trusted_keys(tmp_path)))
    assert "Content-Security-Policy\" content=\"default-src 'none'" in page
    assert UNSEEN in page and "What could not be seen" in page


def test_a_receipt_that_states_nothing_about_coverage_says_that(tmp_path: Path) -> None:
    record(tmp_path)
    checked = verify_receipt(sealed(tmp_path), trusted_keys(tmp_path))
    silent = CheckedReceipt(replace(checked.receipt, coverage=()), "verified", None)
    assert "nothing was stated about it" in receipt_text(silent)
