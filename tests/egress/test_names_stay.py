"""Questions for names leave the machine only for hosts that are allowed and connected to."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from cloister import Sandbox

NOT_ROOT = "without root nobody may look at the packets of this machine"


async def test_a_question_for_a_name_is_asked_of_nobody(
    sandbox_to: Callable[..., Sandbox], inside: Any
) -> None:
    """The far end is every packet that this machine sends or gets."""
    if os.geteuid() != 0:
        pytest.skip(NOT_ROOT)
    secret, allowed = "c2vjcmv0-tunnel", "name-that-may-be-asked"
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3)) as packets:
        packets.setblocking(False)
        # No private one: the real name server of this machine is asked, when it is connected to.
        async with sandbox_to(f"{allowed}.test", private=False) as sandbox:
            for command in (
                f"getent ahostsv4 {secret}.web.test",
                f"getent ahostsv4 {secret}.{allowed}.test",
                f"getent ahostsv4 {allowed}.test",
            ):
                await sandbox.run(command)
            before = _drain(packets)
            # TLS is what a rule without a port means, so the connection goes on to a lookup.
            await sandbox.run(f"curl -skm 3 https://{allowed}.test/")
            after = before + await _wait_for(packets, allowed.encode(), 5.0)
            asked = (await sandbox.traffic()).asked
    assert {f"{secret}.web.test", f"{secret}.{allowed}.test"} <= {each.host for each in asked}
    assert not [packet for packet in after if secret.encode() in packet]
    assert not [packet for packet in before if allowed.encode() in packet]
    assert [packet for packet in after if allowed.encode() in packet]


def _drain(packets: socket.socket) -> list[bytes]:
    found = []
    try:
        while True:
            found.append(packets.recv(65_536))
    except BlockingIOError:
        return found


async def _wait_for(packets: socket.socket, word: bytes, most_s: float) -> list[bytes]:
    found: list[bytes] = []
    deadline = time.monotonic() + most_s
    while time.monotonic() < deadline and not any(word in packet for packet in found):
        found += _drain(packets)
        await asyncio.sleep(0.01)
    return found
