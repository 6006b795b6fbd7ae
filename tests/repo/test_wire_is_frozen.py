"""The wire's page, the host and the cell name the same numbers, and no generation ever changes."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from cloister.runtime.namespace import launcher
from cloister.sandbox import entries, files, parcel
from cloister.wire import GENERATION, MAX_FROM_GUEST, MAX_TO_GUEST, messages, wired

# The golden bytes of each generation. A changed digest is a changed contract: raise GENERATION in
# both halves and add a line here; the line of a released generation stays as it is.
FROZEN = {
    1: "6743ae9c2945d9f76c3a81512e1c63acd56b84845bdc033c8858fe1c87a6b622",
    2: "f74f31b14d77357447b63cbfd93943f830c60bc5851d29157ff2f57a05e1193d",
    3: "a5ff183bb0f00c540a46b70c7e1e76533ae2cde132b19695112064a3dbefa515",
}
TO_GUEST = (
    *("START", "SIGNAL", "RESIZE", "DIAL", "FILE", "DATA", "CLOSE", "CREDIT", "PING"),
    *("HOLD", "PROCEED", "RENEW", "ANSWER"),
)
FROM_GUEST = (
    *("DATA", "CLOSE", "CREDIT", "HELLO", "STARTED", "EXITED", "FAILED", "PONG"),
    *("HELD", "ACCEPTED", "ASKED", "REFUSED"),
)
TO_LAUNCHER = ("CONFIGURE", "LAUNCH", "DESTROY", "FREEZE")
FROM_LAUNCHER = ("AWAKE", "READY", "LAUNCHED", "FAILED", "GONE", "FROZEN")


@pytest.fixture(scope="module")
def page() -> str:
    return _text("wire/README.md")


def test_the_golden_bytes_of_this_generation_have_not_changed() -> None:
    assert max(FROZEN) == GENERATION
    assert hashlib.sha256(_text("wire/golden.txt").encode()).hexdigest() == FROZEN[GENERATION]


def test_both_halves_and_the_page_say_the_same_generation(page: str) -> None:
    assert f"the **generation**, now {GENERATION}." in page
    assert _rust_numbers("wire/mod.rs")["GENERATION"] == GENERATION


@pytest.mark.parametrize(
    ("section", "names"), [("To the guest", TO_GUEST), ("From the guest", FROM_GUEST)]
)
def test_messages_have_one_number_everywhere(
    page: str, section: str, names: tuple[str, ...]
) -> None:
    ours = {name: getattr(messages, name) for name in names}
    theirs = _rust_numbers("wire/message.rs")
    assert ours == {name: theirs[name] for name in names}
    assert ours == _listed(_section(page, section))


def test_there_is_no_message_the_page_does_not_list() -> None:
    numbers = _rust_numbers("wire/message.rs")
    assert set(numbers) == {*TO_GUEST, *FROM_GUEST}


def test_packets_have_one_number_everywhere(page: str) -> None:
    names = (*TO_LAUNCHER, *FROM_LAUNCHER)
    ours = {name: getattr(launcher, "_" + name) for name in names}
    assert ours == _rust_numbers("zygote/message.rs")
    assert ours == _listed(_section(page, "Packets: host and launcher"))


def test_file_operations_and_flags_have_one_number_everywhere(page: str) -> None:
    section = _section(page, "File operations")
    operations = {operation.name: int(operation) for operation in messages.Operation}
    flags = {flag.name: int(flag) for flag in messages.Flag}
    theirs = _rust_numbers("guest/clerk/mod.rs")
    assert {**operations, **flags} == {
        name: number for name, number in theirs.items() if name != "AT_FILE"
    }
    rows = re.findall(r"(?m)^\| (\d+) \| ([A-Z]+)", section)
    assert {name: int(number) for number, name in rows} == {**operations, **flags}


def test_kinds_of_changes_and_entries_have_one_number_everywhere(page: str) -> None:
    changes = {kind.name: number for number, kind in entries._CHANGES.items()} | {
        "READY": entries._READY
    }
    theirs = _rust_numbers("guest/clerk/watch.rs")
    assert changes == {name: theirs[name] for name in changes}
    for name, number in changes.items():
        word = name.lower().replace("_", " ")
        assert re.search(rf"\b{number}\s+{word}\b", page), word
    kinds = _rust_numbers("guest/clerk/parcel.rs")
    assert tuple(kinds[name] for name in ("END", "FILE", "DIR", "LINK")) == (
        parcel.END,
        parcel.FILE,
        parcel.DIRECTORY,
        parcel.LINK,
    )


def test_limits_have_one_number_everywhere(page: str) -> None:
    assert _rust_numbers("wire/frame.rs")["MAX_TO_GUEST"] == MAX_TO_GUEST
    assert _rust_numbers("guest/duct.rs")["WINDOW"] == wired.WINDOW
    assert _rust_numbers("guest/clerk/parcel.rs")["MAX_NAME"] == parcel.MAX_PATH
    most = _rust_numbers("zygote/mod.rs")["MAX_REQUEST"]
    assert _rust_numbers("zygote/launch.rs")["MAX_REPORT"] < launcher._MAX_REPLY
    limits = (MAX_TO_GUEST, MAX_FROM_GUEST, wired.WINDOW, parcel.MAX_PATH, most)
    for limit in (
        *limits,
        launcher._MAX_REPLY,
        files._MAX_RECORD,
        messages._MAX_TEXT,
        messages._MAX_FACTS,
    ):
        assert re.search(rf"\b{limit}\b", page), limit


def _text(path: str) -> str:
    return (Path(__file__).resolve().parents[2] / path).read_text()


def _section(page: str, title: str) -> str:
    found = re.search(rf"(?ms)^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", page)
    assert found is not None, title
    return found[1]


def _listed(section: str) -> dict[str, int]:
    return {name: int(kind) for kind, name in re.findall(r"(?m)^\| (\d+) \| ([A-Z]+) \|", section)}


def _rust_numbers(path: str) -> dict[str, int]:
    """The numeric constants of a Rust file; sums of powers are written `4 * 1024 * 1024`."""
    found = re.findall(
        r"(?m)^(?:pub )?const (\w+): (?:u8|u32|usize) = ([\d_* ]+);", _text(f"cell/src/{path}")
    )
    numbers = {}
    for name, value in found:
        number = 1
        for factor in value.split("*"):
            number *= int(factor)
        numbers[name] = number
    return numbers
