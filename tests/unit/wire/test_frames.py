"""Frames: however the bytes are cut the same frames come out, and nothing else ever does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import ProtocolViolation
from cloister.wire import MAX_FROM_GUEST, Assembler, decode_message, encode_frame
from cloister.wire.frames import Frame

frames = st.builds(Frame, st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=300))


@given(st.lists(frames, max_size=20), st.lists(st.integers(1, 60), max_size=50))
def test_any_cut_of_the_bytes_gives_the_same_frames(sent: list[Frame], cuts: list[int]) -> None:
    data = b"".join(encode_frame(*frame) for frame in sent)
    assembler, found = Assembler(), []
    for cut in cuts:
        found += assembler.feed(data[:cut])
        data = data[cut:]
    found += assembler.feed(data)
    assert found == sent


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_arbitrary_bytes_give_messages_or_a_violation(parts: list[bytes]) -> None:
    assembler = Assembler()
    try:
        for part in parts:
            for frame in assembler.feed(part):
                decode_message(frame)
    except ProtocolViolation:
        return


@given(st.sampled_from([6, 7, 8, 32, 33, 34, 35, 36]), st.binary(max_size=128))
def test_an_arbitrary_payload_gives_a_message_or_a_violation(kind: int, payload: bytes) -> None:
    try:
        decode_message(Frame(kind, 1, payload))
    except ProtocolViolation:
        return


@given(st.binary(min_size=1, max_size=2000), st.integers(1, 100))
def test_no_more_than_one_frame_is_ever_held(data: bytes, cut: int) -> None:
    assembler = Assembler(limit=64)
    try:
        for at in range(0, len(data), cut):
            assembler.feed(data[at : at + cut])
            assert len(assembler._pending) < 4 + 64
    except ProtocolViolation:
        return


@pytest.mark.parametrize("length", [0, 1, 4, MAX_FROM_GUEST + 1, 2**31, 2**32 - 1])
def test_a_forbidden_length_is_refused_before_the_frame_arrives(length: int) -> None:
    with pytest.raises(ProtocolViolation, match=str(length)):
        Assembler().feed(length.to_bytes(4, "little"))


@pytest.mark.parametrize("size", [0, MAX_FROM_GUEST - 5])
def test_the_smallest_and_the_largest_frame_are_taken(size: int) -> None:
    (frame,) = Assembler().feed(encode_frame(36, 1, bytes(size)))
    assert len(frame.payload) == size


@pytest.mark.parametrize("errno", [4096, 2**31, 2**32 - 1])
def test_an_error_number_no_kernel_has_is_refused(errno: int) -> None:
    payload = errno.to_bytes(4, "little") + bytes(8)
    with pytest.raises(ProtocolViolation, match="error number"):
        decode_message(Frame(35, 1, payload))
    decode_message(Frame(35, 1, (4095).to_bytes(4, "little") + bytes(8)))


@pytest.mark.parametrize("kind", [0, 1, 5, 9, 13, 31, 41, 255])
def test_a_kind_that_is_not_the_guests_to_send_is_refused(kind: int) -> None:
    with pytest.raises(ProtocolViolation, match="unknown kind"):
        decode_message(Frame(kind, 1, b""))
