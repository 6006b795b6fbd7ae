"""Random frames from a guest that was replaced: no caller waits for ever, nothing escapes."""

from __future__ import annotations

import asyncio
import socket

import pytest

from cloister.errors import CloisterError
from cloister.verify.cases.agt_impostor import fuzz
from cloister.verify.impostor import no_alarms, resident_bytes
from cloister.wire import GENERATION, Hello, Link, Message, encode_frame
from cloister.wire.messages import encode_data

MIB = 1024 * 1024


async def test_a_few_thousand_random_frames_are_survived() -> None:
    async with no_alarms():
        assert await fuzz(seed=7, connections=80, frames=50) == 4000


@pytest.mark.soak
async def test_a_million_random_frames_are_survived_in_bounded_memory() -> None:
    before = resident_bytes()
    async with no_alarms():
        for seed in range(400):
            await fuzz(seed=seed, connections=50, frames=50)
    assert resident_bytes() - before < 64 * MIB


@pytest.mark.parametrize(
    ("frame", "most"), [(encode_frame(39, 1, b""), 500), (encode_data(1, 1, bytes(60_000)), 4)]
)
async def test_a_flood_of_small_frames_leaves_others_their_turn(frame: bytes, most: int) -> None:
    heard: list[Message] = []

    class Heard:
        def hear(self, message: Message) -> None:
            heard.append(message)

        def lost(self, error: CloisterError) -> None:
            heard.clear()

    ours, theirs = socket.socketpair()
    link = Link(ours, carries_descriptors=False, on_lost=lambda error: None)
    try:
        link.greeted.set_result(Hello(GENERATION, b""))
        link.listen(1, Heard())
        theirs.setblocking(False)
        whole = theirs.send(frame * (128 * 1024 // len(frame))) // len(frame)
        turns = []
        while len(heard) < whole:
            before = len(heard)
            await asyncio.sleep(0)
            turns.append(len(heard) - before)
        assert max(turns) <= most
        assert len(heard) == whole
    finally:
        link.close()
        theirs.close()
