"""A placeholder goes nowhere by a WebSocket; everything else a program sends by it arrives."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import SERVER, Protocol

from cloister.egress.depth.websocket import MOST_FRAME_BYTES, OutgoingFrames
from cloister.egress.refusal import Malformed, Refusal
from cloister.egress.secrets.scrub import Patterns

VALUE, STAND_IN = "ghp_TheRealValue1234567890", "ghp_PlaceHolderXYZ98765432"
VALUES = {"TOKEN": {"placeholder": STAND_IN, "value": VALUE}}


def frame(data: bytes, opcode: Opcode = Opcode.TEXT, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


class Counted:
    """Counts what is held, as the sandbox does."""

    held = 0

    def hold(self, count: int) -> None:
        self.held += count


def frames() -> tuple[OutgoingFrames, Counted]:
    counted = Counted()
    patterns = Patterns({STAND_IN.encode(): "TOKEN"})
    return OutgoingFrames(counted, patterns, "web.test"), counted  # type: ignore[arg-type]


def read_back(data: bytes) -> list[tuple[Opcode, bytes, bool]]:
    reading = Protocol(SERVER, max_size=None)
    reading.receive_data(data)
    assert reading.parser_exc is None
    return [
        (each.opcode, bytes(each.data), each.fin)
        for each in reading.events_received()
        if isinstance(each, Frame)
    ]


@given(st.lists(st.binary(max_size=400), min_size=1, max_size=6), st.integers(1, 50))
def test_frames_arrive_as_they_were_sent_however_they_are_cut(
    messages: list[bytes], cut: int
) -> None:
    looking, counted = frames()
    sent = b"".join(frame(each, Opcode.BINARY) for each in messages)
    out = b"".join(looking.feed(sent[at : at + cut]) for at in range(0, len(sent), cut))
    assert read_back(out) == [(Opcode.BINARY, each, True) for each in messages]
    looking.close()
    assert counted.held == 0


@given(st.binary(max_size=300))
def test_whatever_a_program_sends_is_passed_on_or_refused(data: bytes) -> None:
    looking, _ = frames()
    with contextlib.suppress(Refusal):
        looking.feed(data)


@pytest.mark.parametrize(
    "sent",
    [
        [frame(b'{"auth": "' + STAND_IN.encode() + b'"}')],
        [frame(STAND_IN.encode(), Opcode.BINARY)],
        [frame(STAND_IN.encode(), Opcode.PING)],
        [
            frame(b"x" + STAND_IN.encode()[:9], fin=False),
            frame(b"", Opcode.PING),
            frame(STAND_IN.encode()[9:], Opcode.CONT),
        ],
        [frame(b"a"), frame(b"b"), frame(STAND_IN.encode())],
    ],
)
def test_a_placeholder_in_any_frame_is_refused(sent: list[bytes]) -> None:
    looking, _ = frames()
    with pytest.raises(Refusal, match="placeholder of TOKEN"):
        for each in sent:
            looking.feed(each)


def test_two_messages_are_not_one() -> None:
    looking, _ = frames()
    for part in (STAND_IN.encode()[:9], STAND_IN.encode()[9:]):
        assert looking.feed(frame(part))


def test_a_frame_is_held_whole_and_no_longer_than_it_may_be() -> None:
    looking, counted = frames()
    long = frame(b"x" * MOST_FRAME_BYTES)
    assert looking.feed(long[:-1]) == b""
    assert counted.held == len(long) - 1
    assert len(looking.feed(long[-1:])) == len(long)
    assert counted.held <= 16
    with pytest.raises(Malformed, match="WebSocket"):
        looking.feed(frame(b"x" * (MOST_FRAME_BYTES + 1))[:100])
    looking.close()
    assert counted.held == 0


async def speak(end: Any, reader: Any, writer: Any) -> None:
    """Answers the handshake, and keeps every byte that comes after it."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    end.asked.append(("GET", head.split(" ")[1], {"head": head.lower()}, b""))
    key = next(
        line.split(": ")[1]
        for line in head.split("\r\n")
        if line.lower().startswith("sec-websocket-key")
    )
    accept = hashlib.sha1(key.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    writer.write(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + base64.b64encode(accept) + b"\r\n\r\n"
    )
    while data := await reader.read(65_536):
        end.raw.extend(data)
        # As many bytes as came so far, so that who sends knows what has arrived.
        writer.write(Frame(Opcode.TEXT, str(len(end.raw)).encode()).serialize(mask=False))
        await writer.drain()


ASK = (
    b"GET /ws HTTP/1.1\r\nHost: %s:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Extensions: permessage-deflate\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@contextlib.asynccontextmanager
async def switched(doors: Any, host: str, port: int) -> AsyncIterator[tuple[Any, Any]]:
    reader, writer = await doors.connect(host, port)
    writer.write(ASK % (host.encode(), port))
    async with asyncio.timeout(20):
        assert b"101 Switching" in await reader.readuntil(b"\r\n\r\n")
        yield reader, writer
    writer.close()


@pytest.mark.parametrize("host", ["web.test", "other.test"])
async def test_a_placeholder_in_a_message_ends_the_connection_and_is_told(
    host: str, opened: Any, served: Any, anything: Any
) -> None:
    async with served(speak) as far:
        secrets = {
            "TOKEN": {"from": "env:X", "hosts": [f"web.test:{far.port}"], "header": "Authorization"}
        }
        rules = [
            *anything(far.port),
            {"name": "o", "host": f"other.test:{far.port}", "record": True, "effect": "allow"},
        ]
        async with opened(rules, secrets=secrets, values=VALUES) as doors:
            async with switched(doors, host, far.port) as (reader, writer):
                writer.write(frame(b"hello"))
                assert await reader.readexactly(4) == b"\x81\x0211"
                writer.write(frame(b"say " + STAND_IN.encode()))
                with contextlib.suppress(OSError):
                    assert await reader.read() == b""
            told = await doors.events("secret")
    assert read_back(bytes(far.raw)) == [(Opcode.TEXT, b"hello", True)]
    assert [(each["what"], each["name"], each["host"], each["place"]) for each in told] == [
        ("blocked", "TOKEN", host, "WebSocket message")
    ]
    assert "permessage-deflate" not in far.asked[0][2]["head"]


async def test_without_secrets_nothing_is_looked_through(
    opened: Any, served: Any, anything: Any
) -> None:
    async with (
        served(speak) as far,
        opened(anything(far.port)) as doors,
        switched(doors, "web.test", far.port) as (reader, writer),
    ):
        sent = frame(b"say " + STAND_IN.encode())
        writer.write(sent)
        assert (await reader.readexactly(2))[:1] == b"\x81"
    assert bytes(far.raw) == sent
    assert "permessage-deflate" in far.asked[0][2]["head"]
