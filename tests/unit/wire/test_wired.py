"""Bytes inside frames: neither crumbs nor a guest that reads nothing fill the host's memory."""

from __future__ import annotations

import asyncio
import socket

import pytest

from cloister.errors import CloisterError, ProtocolViolation
from cloister.wire import Link, WireIncoming, WireOutgoing
from cloister.wire.messages import encode_close
from cloister.wire.wired import WINDOW


async def test_crumbs_are_held_in_few_pieces_and_come_in_order() -> None:
    ours, theirs = socket.socketpair()
    link = Link(ours, carries_descriptors=False, on_lost=lambda error: None)
    try:
        stream = WireIncoming(link, 1, 1)
        sent = b"".join(number.to_bytes(4, "big") for number in range(WINDOW // 4))
        for at in range(0, WINDOW, 2):
            stream.feed(sent[at : at + 2])
        stream.feed_end()
        async with asyncio.timeout(20):
            pieces = [piece async for piece in stream]
        assert b"".join(pieces) == sent
        assert len(pieces) <= WINDOW // 2048
    finally:
        link.close()
        theirs.close()


async def test_messages_that_a_guest_never_reads_are_its_end() -> None:
    ours, theirs = socket.socketpair()
    lost: list[CloisterError] = []
    link = Link(ours, carries_descriptors=False, on_lost=lost.append)
    try:
        with pytest.raises(ProtocolViolation, match="unread"):
            for number in range(200_000):
                link.send(encode_close(number, 1))
        assert isinstance(lost[0], ProtocolViolation)
        assert link.closed
    finally:
        link.close()
        theirs.close()


async def test_who_writes_byte_by_byte_to_a_guest_that_is_held_still_waits_and_ends_nothing() -> (
    None
):
    ours, theirs = socket.socketpair()
    lost: list[CloisterError] = []
    link = Link(ours, carries_descriptors=False, on_lost=lost.append)
    try:
        stream = WireOutgoing(link, 1, 0)

        async def write() -> None:
            while True:
                await stream.write(b"x")

        writing = asyncio.create_task(write())
        # It is not heard of before it waits.
        await asyncio.sleep(0)
        assert not writing.done()
        writing.cancel()
        assert link.is_unread
        assert not lost
    finally:
        link.close()
        theirs.close()
