"""What the writer writes the reader reads; a length that promises too much is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import ProtocolViolation
from cloister.wire import Reader, Writer

WORDS = {
    "u8": st.integers(0, 2**8 - 1),
    "u16": st.integers(0, 2**16 - 1),
    "u32": st.integers(0, 2**32 - 1),
    "u64": st.integers(0, 2**64 - 1),
    "i64": st.integers(-(2**63), 2**63 - 1),
    "bytes": st.binary(max_size=100),
}
values = st.sampled_from(sorted(WORDS)).flatmap(lambda word: st.tuples(st.just(word), WORDS[word]))


@given(st.lists(values, max_size=20))
def test_what_was_written_is_read(written: list[tuple[str, int | bytes]]) -> None:
    writer = Writer()
    for word, value in written:
        getattr(writer, word)(value)
    reader = Reader(writer.done())
    assert [(word, getattr(reader, word)()) for word, _ in written] == written
    reader.end()


@given(st.binary(max_size=40), st.lists(st.sampled_from(sorted(WORDS)), max_size=10))
def test_arbitrary_bytes_are_read_or_refused(data: bytes, words: list[str]) -> None:
    reader = Reader(data)
    try:
        for word in words:
            getattr(reader, word)()
    except ProtocolViolation:
        return


def test_a_byte_string_longer_than_its_limit_is_refused_and_one_as_long_is_taken() -> None:
    data = Writer().bytes(b"four").done()
    assert Reader(data).bytes(4) == b"four"
    with pytest.raises(ProtocolViolation, match="the limit is 3"):
        Reader(data).bytes(3)


def test_bytes_after_the_end_are_refused() -> None:
    reader = Reader(b"\0\0")
    reader.u8()
    with pytest.raises(ProtocolViolation, match="1 bytes after the end"):
        reader.end()
