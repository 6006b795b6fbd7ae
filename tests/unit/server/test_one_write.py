"""Answers leave in as few writes as they can, and none of them is held back for long."""

from __future__ import annotations

import asyncio

from starlette.types import Message

from cloister.server.one_write import OneWrite

START: Message = {"type": "http.response.start"}
BODY: Message = {"type": "http.response.body"}


class Written(asyncio.Transport):
    """A transport that remembers each write, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.was_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.pieces.append(bytes(data))

    def is_closing(self) -> bool:
        return self.was_closed

    def close(self) -> None:
        self.was_closed = True


async def say(ends: OneWrite, message: Message, data: bytes) -> None:
    async def send(_: Message) -> None:
        ends.write(data)

    await ends.sending(send)(message)


async def test_head_and_first_of_the_body_are_one_write() -> None:
    written = Written()
    ends = OneWrite(written, asyncio.get_running_loop())
    await say(ends, START, b"head")
    await say(ends, BODY, b"body")
    assert written.pieces == [b"headbody"]
    await say(ends, BODY, b"more")
    assert written.pieces == [b"headbody", b"more"]


async def test_a_head_that_nothing_follows_is_written_in_the_next_turn() -> None:
    written = Written()
    ends = OneWrite(written, asyncio.get_running_loop())
    await say(ends, START, b"head")
    assert written.pieces == []
    await asyncio.sleep(0)
    assert written.pieces == [b"head"]
    await say(ends, BODY, b"body")
    assert written.pieces == [b"head", b"body"]


async def test_what_was_held_back_is_written_before_the_end() -> None:
    written = Written()
    ends = OneWrite(written, asyncio.get_running_loop())
    await say(ends, START, b"head")
    ends.close()
    assert (written.pieces, written.was_closed) == ([b"head"], True)
    await asyncio.sleep(0)
    assert written.pieces == [b"head"]


async def test_a_broken_connection_is_written_nothing() -> None:
    written = Written()
    ends = OneWrite(written, asyncio.get_running_loop())
    await say(ends, START, b"head")
    written.close()
    await asyncio.sleep(0)
    assert written.pieces == []
