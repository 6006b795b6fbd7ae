"""The kernel's records of refused packets are read, and no bytes break the reading."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.egress.refused import Packet, parse


def record(payload: bytes) -> bytes:
    attribute = struct.pack("=HH", 4 + len(payload), 9) + payload
    attribute += b"\0" * (-len(attribute) % 4)
    body = struct.pack("=BBH", 2, 0, 5) + struct.pack("=HH", 8, 1) + b"\0" * 4 + attribute
    return struct.pack("=IHHII", 16 + len(body), 0x400, 0, 0, 0) + body


V4 = bytes((0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 127, 0, 0, 1, 8, 8, 8, 8))
V6 = (
    bytes((0x60, 0, 0, 0, 0, 8, 6, 64)) + b"\0" * 16 + bytes.fromhex("2606280002200001") + b"\0" * 8
)
PORTS = struct.pack("!HH", 5000, 443) + b"\0" * 4


@pytest.mark.parametrize(
    ("payload", "packet"),
    [
        (V4 + PORTS, Packet("udp", "8.8.8.8", 443)),
        (V6 + PORTS, Packet("tcp", "2606:2800:220:1::", 443)),
        (V4[:9] + b"\x01" + V4[10:], Packet("icmp", "8.8.8.8", None)),
        (V4, Packet("udp", "8.8.8.8", None)),
    ],
)
def test_where_a_packet_was_going_is_known(payload: bytes, packet: Packet) -> None:
    assert list(parse(record(payload) * 2)) == [packet, packet]


@given(st.binary(max_size=400))
def test_no_bytes_break_it(data: bytes) -> None:
    list(parse(data))
    list(parse(record(data)))
