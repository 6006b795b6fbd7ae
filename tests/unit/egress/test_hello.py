"""The name in a ClientHello is what OpenSSL reads, in whatever pieces it comes."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.egress.hello import asked_name
from cloister.egress.refusal import Refusal


def hello(name: str | None, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = newest
    out = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


async def read(data: bytes, piece: int = 1 << 20, most: int = 65_536) -> str | None:
    pieces = [data[at : at + piece] for at in range(0, len(data), piece)]

    async def more() -> bytes:
        return pieces.pop(0) if pieces else b""

    return await asked_name(pieces.pop(0) if pieces else b"", more, most)


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2])
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
async def test_the_name_is_read_in_any_pieces(newest: ssl.TLSVersion, piece: int) -> None:
    assert await read(hello("example.test", newest), piece) == "example.test"


async def test_no_name_is_none() -> None:
    assert await read(hello(None)) is None


async def test_an_end_in_the_middle_is_refused() -> None:
    with pytest.raises(Refusal, match="went away"):
        await read(hello("example.test")[:100])


async def test_more_than_the_bound_is_refused() -> None:
    with pytest.raises(Refusal, match="longer than"):
        await read(hello("example.test"), 10, most=50)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-x\r\n", b"\x16\x03\x01\xff\xff"]
)
async def test_what_is_not_tls_is_refused(data: bytes) -> None:
    with pytest.raises(Refusal):
        await read(data)


# A name that is not ASCII is an error that the callback's caller reports; the gateway is silent.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@given(data=st.binary(min_size=1, max_size=300), at=st.integers(0, 300))
async def test_damage_is_refused_or_read_but_breaks_nothing(data: bytes, at: int) -> None:
    damaged = bytearray(hello("example.test"))
    damaged[at : at + len(data)] = data
    try:
        await read(bytes(damaged))
    except Refusal:
        return
