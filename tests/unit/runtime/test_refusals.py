"""Records of refused packets, from inside and from around, in one socket."""

from __future__ import annotations

import asyncio
import os
import socket

from cloister.runtime.refusals import Refusals


async def test_both_sources_are_heard_and_a_reader_who_does_not_read_holds_nobody_up() -> None:
    ours, around = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    refusals = Refusals(around.detach())
    with ours, socket.socket(fileno=refusals.detach()) as gateway:
        gateway.setblocking(False)
        refusals.tell(b"inside")
        ours.send(b"around")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(20):
            heard = {await loop.sock_recv(gateway, 100) for _ in range(2)}
        assert heard == {b"inside", b"around"}
        for _ in range(5000):
            refusals.tell(bytes(1000))
        before = len(os.listdir("/proc/self/fd"))
        refusals.close()
        assert len(os.listdir("/proc/self/fd")) == before - 2
        refusals.tell(b"late")
