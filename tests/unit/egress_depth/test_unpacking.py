"""A compressed answer is unpacked to the same bytes however it is cut, and never much at once."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.egress.depth.unpacking import Unpacker
from cloister.egress.refusal import Unreachable


@given(st.binary(max_size=5000), st.lists(st.integers(1, 500), max_size=20), st.booleans())
def test_what_is_unpacked_does_not_depend_on_the_cuts(
    said: bytes, cuts: list[int], is_gzip: bool
) -> None:
    packed = gzip.compress(said) if is_gzip else zlib.compress(said)
    unpacker, out, at = Unpacker(b"gzip" if is_gzip else b"deflate"), b"", 0
    for cut in (*cuts, len(packed)):
        out += b"".join(unpacker.feed(packed[at : at + cut]))
        at += cut
    unpacker.end()
    assert out == said


def test_a_bomb_comes_in_small_pieces() -> None:
    bomb = gzip.compress(bytes(64 * 2**20))
    pieces = [len(piece) for piece in Unpacker(b"gzip").feed(bomb)]
    assert sum(pieces) == 64 * 2**20
    assert max(pieces) <= 64 * 1024


@given(st.binary(min_size=1, max_size=200))
def test_whatever_comes_is_unpacked_or_refused(data: bytes) -> None:
    for coding in (b"gzip", b"deflate"):
        unpacker = Unpacker(coding)
        try:
            list(unpacker.feed(data))
            unpacker.end()
        except Unreachable:
            continue


def test_a_missing_end_is_noticed_and_an_empty_body_has_none_to_miss() -> None:
    unpacker = Unpacker(b"gzip")
    list(unpacker.feed(gzip.compress(b"whole")[:-1]))
    with pytest.raises(Unreachable, match="no end"):
        unpacker.end()
    Unpacker(b"gzip").end()
