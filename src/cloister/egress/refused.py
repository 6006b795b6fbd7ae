"""Reads the kernel's records of refused packets: where to, and by which protocol."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
# Of `struct nfgenmsg`.
_GENERIC_BYTES = 4
_LOG_PACKET = (4 << 8) | 0
_PAYLOAD = 9
_KIND = 0x3FFF
_PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmp6", 132: "sctp", 47: "gre", 50: "esp"}
_WITH_PORTS = frozenset((6, 17, 132))
_MOST_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Packet:
    """What was refused; the port is None where the protocol has none."""

    protocol: str
    address: str
    port: int | None


def read_waiting(sock: socket.socket, most: int) -> tuple[list[Packet], int]:
    """Return what has been refused since, and how many records were read or lost."""
    packets: list[Packet] = []
    for count in range(most):
        try:
            data = sock.recv(_MOST_BYTES)
        except BlockingIOError:
            return packets, count
        except OSError:
            # The kernel had more to say than fits its buffer: some records are lost.
            return packets, count + 1
        packets += parse(data)
    return packets, most


def parse(data: bytes) -> Iterator[Packet]:
    """Yield the packets of one message of the kernel's."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > len(data):
            return
        if kind == _LOG_PACKET:
            payload = _payload(data[at + _HEADER.size + _GENERIC_BYTES : at + length])
            packet = None if payload is None else _packet(payload)
            if packet is not None:
                yield packet
        at += (length + 3) & ~3


def _payload(attributes: bytes) -> bytes | None:
    at = 0
    while at + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, at)
        if length < _ATTRIBUTE.size:
            return None
        if kind & _KIND == _PAYLOAD:
            return attributes[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3
    return None


def _packet(payload: bytes) -> Packet | None:
    version = payload[0] >> 4 if payload else 0
    if version == 4 and len(payload) >= 20:
        header, number, place = (payload[0] & 15) * 4, payload[9], payload[16:20]
    elif version == 6 and len(payload) >= 40:
        header, number, place = 40, payload[6], payload[24:40]
    else:
        return None
    port = None
    if number in _WITH_PORTS and len(payload) >= header + 4:
        port = int.from_bytes(payload[header + 2 : header + 4], "big")
    address = str(ipaddress.ip_address(place))
    return Packet(_PROTOCOLS.get(number, f"protocol {number}"), address, port)
