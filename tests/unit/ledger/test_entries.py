"""Entries: every kind is read back as it was written, and no text breaks out of its line."""

from __future__ import annotations

import json
import string
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import RequestError
from cloister.ledger import KINDS, BadEntry, Cut, CutList, Payload, ProcessStarted, Trace, facts
from cloister.ledger.entry import MAXIMUM_LINE_BYTES, Entry, Unknown, decode_line, encode_line
from cloister.ledger.payload import Payload as Anything
from cloister.ledger.shape import canonical
from cloister.ledger.text import (
    LIST_BYTES,
    TEXT_BYTES,
    Text,
    decode_text,
    encode_text,
    readable,
    shorten,
    to_bytes,
)
from cloister.ledger.words import describe, plain

HOSTILE = st.text(st.characters(exclude_categories=())) | st.binary()


def line_of(payload: Payload) -> bytes:
    line, _ = encode_line(
        payload, sequence=7, time_ns=8, monotonic_ns=9, sandbox="sb", before="0" * 64
    )
    return line


def back(payload: Payload) -> Payload:
    return decode_line(line_of(payload)).payload


def test_every_kind_is_read_back_as_it_was_written(samples: tuple[Payload, ...]) -> None:
    for sample in samples:
        assert back(sample) == sample


def test_every_kind_is_named_room_dot_verb_and_explains_itself() -> None:
    for name, kind in KINDS.items():
        room, _, verb = name.partition(".")
        assert room.isalpha() and set(verb) <= {*string.ascii_lowercase, "_"}
        assert (kind.__doc__ or "").strip() and not (kind.__doc__ or "").startswith(kind.__name__)


def test_what_is_around_the_payload_is_read_back() -> None:
    trace = Trace("ab" * 16, "cd" * 8, 1)
    sample = ProcessStarted(("a",), "api", "host")
    line, digest = encode_line(
        sample,
        sequence=1,
        time_ns=2,
        monotonic_ns=3,
        sandbox="sb",
        before="ef" * 32,
        span=1,
        trace=trace,
    )
    assert decode_line(line) == Entry(1, 2, 3, "sb", "ef" * 32, digest, sample, 1, trace)


@given(st.lists(HOSTILE, max_size=6), HOSTILE)
def test_hostile_text_stays_on_its_line_and_inside_its_field(argv: list[Text], cwd: Text) -> None:
    sample = ProcessStarted(tuple(argv), "inside", "guest", cwd)
    line = line_of(sample)
    assert line.isascii() and line.count(b"\n") == 1 and line.endswith(b"\n")
    assert all(0x20 <= byte < 0x7F for byte in line[:-1])
    body = json.loads(line)["entry"]
    assert set(body["payload"]) == {"argv", "by", "source", "cwd"}
    assert canonical(json.loads(line)) + b"\n" == line
    found = decode_line(line).payload
    assert isinstance(found, ProcessStarted) and isinstance(found.argv, tuple)
    assert [shorten(one) for one in argv] == list(found.argv)


@given(HOSTILE)
def test_a_text_is_read_back_byte_for_byte_or_with_its_digest(value: str | bytes) -> None:
    found = decode_text(json.loads(json.dumps(encode_text(value))))
    raw = to_bytes(value)
    if isinstance(found, Cut):
        assert found.total_bytes == len(raw) > TEXT_BYTES
        assert raw.startswith(to_bytes(found.kept))
    else:
        assert to_bytes(found) == raw


@given(st.lists(HOSTILE, max_size=3), st.integers(0, 3000), st.integers(0, 9000))
def test_no_entry_is_longer_than_a_reader_takes(parts: list[Text], items: int, length: int) -> None:
    # Control characters take six bytes each in JSON: the worst there is.
    sample = ProcessStarted((*parts, *(["\x1b" * length] * items)), "api", "host", "\0" * length)
    line = line_of(sample)
    assert len(line) <= MAXIMUM_LINE_BYTES
    assert isinstance(decode_line(line).payload, ProcessStarted)


def test_what_is_too_long_is_cut_and_says_how_much_there_was() -> None:
    long, short = "x" * (TEXT_BYTES + 1), "x" * TEXT_BYTES
    found = back(ProcessStarted((long, short), "api", "host"))
    assert isinstance(found, ProcessStarted) and isinstance(found.argv, tuple)
    cut, whole = found.argv
    assert isinstance(cut, Cut) and cut.total_bytes == TEXT_BYTES + 1 and cut.kept == short
    assert whole == short
    many = back(ProcessStarted(("y" * 1000,) * 100, "api", "host"))
    assert isinstance(many, ProcessStarted) and isinstance(many.argv, CutList)
    assert many.argv.total == 100 and len(many.argv.kept) == LIST_BYTES // 1000


def test_a_cut_text_is_written_again_as_it_was_read() -> None:
    once = back(ProcessStarted(("é" * 5000, b"\xff" * 5000), "api", "host"))
    assert back(once) == once


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_no_entry(data: bytes) -> None:
    with pytest.raises(BadEntry):
        decode_line(data)


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner)))
def test_arbitrary_json_with_a_right_hash_is_no_entry(value: object) -> None:
    import hashlib

    body = canonical(value)
    digest = hashlib.sha256(body).hexdigest().encode()
    with pytest.raises(BadEntry):
        decode_line(b'{"entry":' + body + b',"hash":"' + digest + b'"}\n')


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"sequence": "1"},
        {"sequence": -1},
        {"sequence": True},
        {"span": None},
        {"trace": "00-zz"},
        {"kind": 3},
        {"payload": []},
        {"payload": {}},
        {"payload": {"argv": ["a"], "by": "nobody", "source": "host"}},
        {"payload": {"argv": ["a"], "by": "api", "source": "host", "extra": 1}},
        {"payload": {"argv": "a", "by": "api", "source": "host"}},
        {"payload": {"argv": ["a"], "by": "api", "source": "host", "pid": 1.0}},
        {"payload": {"argv": [{"base64": "!"}], "by": "api", "source": "host"}},
    ],
)
def test_an_entry_with_a_field_too_many_or_of_another_type_is_refused(
    change: dict[str, object],
) -> None:
    import hashlib

    good = json.loads(line_of(ProcessStarted(("a",), "api", "host")))["entry"]
    for value, is_good in (({**good, **change}, False), (good, True)):
        body = canonical(value)
        digest = hashlib.sha256(body).hexdigest().encode()
        line = b'{"entry":' + body + b',"hash":"' + digest + b'"}\n'
        if is_good:
            decode_line(line)
        else:
            with pytest.raises(BadEntry):
                decode_line(line)


def test_a_kind_of_a_later_release_is_kept_as_it_is() -> None:
    import hashlib

    good = json.loads(line_of(ProcessStarted(("a",), "api", "host")))["entry"]
    body = canonical({**good, "kind": "moon.phase", "payload": {"full": True}})
    digest = hashlib.sha256(body).hexdigest().encode()
    entry = decode_line(b'{"entry":' + body + b',"hash":"' + digest + b'"}\n')
    assert entry.payload == Unknown("moon.phase", {"full": True}) and entry.kind == "moon.phase"
    assert describe(entry)


@pytest.mark.parametrize(
    "wrong",
    [
        ProcessStarted("argv", "api", "host"),  # type: ignore[arg-type]
        ProcessStarted(("a",), "nobody", "host"),  # type: ignore[arg-type]
        ProcessStarted(("a",), "api", "host", pid="1"),  # type: ignore[arg-type]
        ProcessStarted(("a",), "api", "host", pid=True),
        ProcessStarted(("a",), "api", "host", pid=1 << 70),
        ProcessStarted((1,), "api", "host"),  # type: ignore[arg-type]
    ],
)
def test_a_caller_who_writes_the_wrong_type_is_told(wrong: ProcessStarted) -> None:
    with pytest.raises(RequestError):
        line_of(wrong)


def test_a_payload_that_is_none_of_ours_is_refused() -> None:
    class Other(Anything):
        kind = "process.started"

    with pytest.raises(RequestError):
        line_of(Other())


@given(HOSTILE)
def test_shown_text_never_acts_on_a_terminal(value: str | bytes) -> None:
    shown = plain(readable(value))
    assert shown.isprintable()
    shown.encode("utf-8")


def test_every_kind_can_be_shown_on_one_line(samples: tuple[Payload, ...]) -> None:
    for sample in samples:
        shown = describe(decode_line(line_of(sample)))
        assert shown.isprintable() and (shown or not fields(sample))  # type: ignore[arg-type]


def test_facts_are_sorted_texts() -> None:
    assert facts({"b": 1, "a": "x=y"}) == ("a=x=y", "b=1")
