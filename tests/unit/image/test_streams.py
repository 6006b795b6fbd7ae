"""Streams are what they should be, or end in an error; none is larger than its limit."""

from __future__ import annotations

import gzip
import hashlib
import sys
import tracemalloc
import zlib
from collections.abc import Iterator

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import ImageRefused, Unsupported
from cloister.image.manifest import Descriptor
from cloister.image.streams import CHUNK_BYTES, Digesting, decompressed, verified

PACK = {
    "none": lambda data: b"plain" + data,
    "gzip": lambda data: gzip.compress(b"plain" + data),
    "zstd": lambda data: zstandard.compress(b"plain" + data),
}


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@given(st.binary(max_size=5000), st.sampled_from(sorted(PACK)), st.integers(1, 400))
def test_what_was_packed_comes_out_however_it_is_cut(data: bytes, kind: str, size: int) -> None:
    packed = PACK[kind](data)
    assert b"".join(decompressed(pieces(packed, size), 10**6)) == b"plain" + data


def test_members_and_frames_follow_each_other() -> None:
    two = gzip.compress(b"one") + gzip.compress(b"two")
    assert b"".join(decompressed(iter([two]), 100)) == b"onetwo"
    frames = zstandard.compress(b"one") + zstandard.compress(b"two")
    assert b"".join(decompressed(iter([frames]), 100)) == b"onetwo"


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_bomb_ends_at_its_limit_and_takes_no_memory(pack) -> None:  # type: ignore[no-untyped-def]
    bomb = pack(bytes(200 * 2**20))
    tracemalloc.start()
    try:
        count = 0
        with pytest.raises(ImageRefused, match="unfolds to more than"):
            for chunk in decompressed(iter([bomb]), 50 * 2**20):
                assert len(chunk) <= CHUNK_BYTES
                count += len(chunk)
        assert count <= 50 * 2**20
        assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "damaged",
    [
        gzip.compress(b"x" * 1000)[:-9],
        gzip.compress(b"x" * 1000) + b"junk",
        b"\x1f\x8b\x08" + bytes(30),
        zstandard.compress(b"x" * 1000) + b"junk",
        zstandard.compress(bytes(range(256)) * 9)[:9] + bytes(99),
    ],
)
def test_a_damaged_stream_is_refused(damaged: bytes) -> None:
    with pytest.raises(ImageRefused, match="damaged"):
        for _ in decompressed(iter([damaged]), 10**6):
            continue


def test_a_window_larger_than_memory_should_be_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(
        window_log=30, enable_ldm=True, write_content_size=False
    )
    wide = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    stream = wide.compress(bytes(1000)) + wide.flush()
    with pytest.raises(ImageRefused, match="zstd"):
        b"".join(decompressed(iter([stream]), 10**6))


def test_without_the_package_zstd_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(Unsupported, match=r"cloister\[images\]"):
        next(decompressed(iter([zstandard.compress(b"x")]), 100))
    assert b"".join(decompressed(iter([zlib.compress(b"x", wbits=31)]), 100)) == b"x"


def blob(data: bytes, algorithm: str = "sha256") -> Descriptor:
    return Descriptor(f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}", len(data), "")


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_a_blob_is_compared_with_its_digest(algorithm: str) -> None:
    wanted = blob(b"content", algorithm)
    assert b"".join(verified(pieces(b"content", 2), wanted, "it")) == b"content"
    for other in (b"contenT", b"conten", b"content!", b""):
        with pytest.raises(ImageRefused):
            b"".join(verified(pieces(other, 2), wanted, "it"))


def test_a_blob_that_goes_on_is_cut_at_once() -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x"

    seen = []
    with pytest.raises(ImageRefused, match="longer"):
        seen.extend(verified(endless(), blob(b"content"), "it"))
    assert len(seen) <= 7


def test_digests_are_of_what_passed() -> None:
    passing = Digesting(iter([b"con", b"tent"]))
    assert b"".join(passing) == b"content"
    assert (passing.digest, passing.bytes) == (blob(b"content").digest, 7)
