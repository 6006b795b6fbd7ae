"""What a guest that was replaced says of connections: carried within bounds, cut, or its end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from cloister.errors import CloisterError
from cloister.runtime.way_out import WayOut
from cloister.wire import CUT, FIRST_OF_GUEST, GENERATION, Assembler, Link, Writer, encode_frame
from cloister.wire.frames import Frame
from cloister.wire.messages import ACCEPTED, ANSWER, ASKED, CLOSE, CREDIT, DATA, HELLO
from cloister.wire.wired import WINDOW


@dataclass
class Around:
    """The network around the sandbox: one server, whatever is dialled."""

    server: asyncio.Server
    dialled: list[tuple[int, int]] = field(default_factory=list)
    refuses: bool = False
    stalls: bool = False
    # Connections whose far end is gone as soon as they are there.
    cut: int = 0

    async def dial(self, address: int, port: int) -> socket.socket:
        self.dialled.append((address, port))
        if self.refuses:
            raise ConnectionRefusedError(111, "refused")
        if self.stalls:
            await asyncio.Event().wait()
        if self.cut:
            self.cut -= 1
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            theirs.close()
            return ours
        sock = socket.socket()
        sock.setblocking(False)
        try:
            where = self.server.sockets[0].getsockname()
            await asyncio.get_running_loop().sock_connect(sock, where)
        except BaseException:
            sock.close()
            raise
        return sock

    def close(self) -> None:
        self.server.close()


@dataclass
class Guest:
    """The other end of a link, which says what it likes."""

    end: socket.socket
    around: Around
    lost: list[CloisterError]
    _frames: Assembler = field(default_factory=Assembler)
    _heard: list[Frame] = field(default_factory=list)

    async def say(self, kind: int, id: int, payload: bytes) -> None:
        frame = encode_frame(kind, id, payload)
        await asyncio.get_running_loop().sock_sendall(self.end, frame)

    async def accept(
        self, id: int, door: int = 0, address: int = 0xCB007109, port: int = 9
    ) -> None:
        await self.say(ACCEPTED, id, Writer().u8(door).u32(address).u16(port).done())

    async def hear(self, kind: int) -> Frame:
        """Return the next frame of a kind; credit in between is passed over."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(20):
            while True:
                while self._heard:
                    frame = self._heard.pop(0)
                    if frame.kind == kind:
                        return frame
                    assert frame.kind == CREDIT, frame
                self._heard += self._frames.feed(await loop.sock_recv(self.end, 65_536))


@asynccontextmanager
async def a_guest() -> AsyncIterator[Guest]:
    echoing: set[asyncio.Task[None]] = set()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        echoing.add(task)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    lost: list[CloisterError] = []
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    around = Around(server)
    link = Link(ours, carries_descriptors=False, on_lost=lost.append)
    way_out = WayOut(link, around)
    guest = Guest(theirs, around, lost)
    try:
        await guest.say(HELLO, 0, Writer().u8(GENERATION).bytes(b"").done())
        await link.greeted
        yield guest
    finally:
        way_out.close()
        link.close()
        theirs.close()
        await asyncio.gather(*echoing)


async def test_a_connection_is_carried_both_ways_to_its_end() -> None:
    async with a_guest() as guest:
        await guest.accept(FIRST_OF_GUEST, address=0xCB007109, port=443)
        await guest.say(DATA, FIRST_OF_GUEST, b"\1hello")
        assert (await guest.hear(DATA)).payload == b"\0hello"
        await guest.say(CLOSE, FIRST_OF_GUEST, b"\1")
        assert (await guest.hear(CLOSE)).payload == b"\0"
        assert guest.around.dialled == [(0xCB007109, 443)]
        assert not guest.lost


async def test_proxies_and_names_lead_to_their_doors_whatever_address_is_said() -> None:
    async with a_guest() as guest:
        for number, door in enumerate((1, 2, 3)):
            await guest.accept(FIRST_OF_GUEST + number, door=door)
            await guest.say(DATA, FIRST_OF_GUEST + number, b"\1x")
            await guest.hear(DATA)
        assert guest.around.dialled == [(0xC6120001, 53), (0x7F000001, 3128), (0x7F000001, 1080)]


async def test_what_cannot_be_dialled_or_is_no_door_is_cut() -> None:
    async with a_guest() as guest:
        guest.around.refuses = True
        await guest.accept(FIRST_OF_GUEST)
        cut = await guest.hear(CLOSE)
        assert (cut.id, cut.payload) == (FIRST_OF_GUEST, bytes((CUT,)))
        await guest.accept(FIRST_OF_GUEST + 1, door=200)
        assert (await guest.hear(CLOSE)).id == FIRST_OF_GUEST + 1
        assert len(guest.around.dialled) == 1


async def test_more_connections_than_may_be_open_are_cut_and_those_that_are_go_on() -> None:
    async with a_guest() as guest:
        for number in range(257):
            await guest.accept(FIRST_OF_GUEST + number)
        assert (await guest.hear(CLOSE)).id == FIRST_OF_GUEST + 256
        await guest.say(DATA, FIRST_OF_GUEST, b"\1still")
        assert (await guest.hear(DATA)).payload == b"\0still"


async def test_more_bytes_than_were_credited_end_the_sandbox() -> None:
    async with a_guest() as guest:
        guest.around.stalls = True
        await guest.accept(FIRST_OF_GUEST)
        for _ in range(WINDOW // 65_536 + 1):
            await guest.say(DATA, FIRST_OF_GUEST, b"\1" + bytes(65_536))
        async with asyncio.timeout(20):
            while not guest.lost:
                await asyncio.sleep(0)
        assert "were allowed" in str(guest.lost[0])


async def test_a_question_is_answered_and_one_that_is_too_long_ends_the_sandbox() -> None:
    async with a_guest() as guest:
        await guest.say(ASKED, FIRST_OF_GUEST, b"question")
        answer = await guest.hear(ANSWER)
        assert (answer.id, answer.payload) == (FIRST_OF_GUEST, b"question")
        await guest.say(ASKED, FIRST_OF_GUEST + 1, bytes(4097))
        async with asyncio.timeout(20):
            while not guest.lost:
                await asyncio.sleep(0)
        assert "4096" in str(guest.lost[0])


async def test_a_question_that_is_cut_is_asked_once_more_and_no_more_than_that() -> None:
    async with a_guest() as guest:
        guest.around.cut = 1
        await guest.say(ASKED, FIRST_OF_GUEST, b"first")
        assert (await guest.hear(ANSWER)).payload == b"first"
        assert len(guest.around.dialled) == 2
        guest.around.cut = 2
        await guest.say(ASKED, FIRST_OF_GUEST + 1, b"second")
        async with asyncio.timeout(20):
            while len(guest.around.dialled) < 4:
                await asyncio.sleep(0)
        await guest.say(ASKED, FIRST_OF_GUEST + 2, b"third")
        assert (await guest.hear(ANSWER)).payload == b"third"
        assert len(guest.around.dialled) == 5


async def test_without_a_way_out_whatever_is_accepted_is_cut() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    link = Link(ours, carries_descriptors=False, on_lost=lambda error: None)
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    guest = Guest(theirs, Around(server), [])
    try:
        await guest.say(HELLO, 0, Writer().u8(GENERATION).bytes(b"").done())
        await guest.accept(FIRST_OF_GUEST)
        assert (await guest.hear(CLOSE)).payload == bytes((CUT,))
        assert not guest.around.dialled
    finally:
        link.close()
        theirs.close()
        server.close()


async def test_a_flood_of_what_may_not_be_is_not_queued_for_a_guest_that_reads_nothing() -> None:
    async with a_guest() as guest:
        loop = asyncio.get_running_loop()
        flood = encode_frame(ACCEPTED, FIRST_OF_GUEST, Writer().u8(9).u32(1).u16(9).done()) * 4096
        async with asyncio.timeout(60):
            while not guest.lost:
                with contextlib.suppress(OSError):
                    await loop.sock_sendall(guest.end, flood)
        assert "reads no answer" in str(guest.lost[0])


async def test_answers_are_not_kept_for_a_guest_that_asks_and_reads_none() -> None:
    async with a_guest() as guest:
        for number in range(1000):
            await guest.say(ASKED, FIRST_OF_GUEST + number, b"q" * 4000)
            # Until it is answered, for all but a few.
            for _ in range(20):
                await asyncio.sleep(0)
        asked = len(guest.around.dialled)
        assert asked > 700
        # What leads out is not begun either, and a guest that reads again is served again.
        await guest.accept(FIRST_OF_GUEST + 5000)
        assert (await heard_until(guest, CLOSE)) < 600
        assert len(guest.around.dialled) == asked
        await guest.say(ASKED, FIRST_OF_GUEST + 6000, b"again")
        assert (await guest.hear(ANSWER)).payload == b"again"
        assert not guest.lost


async def heard_until(guest: Guest, kind: int) -> int:
    """Return how many answers a guest finds before what it waits for."""
    loop, frames, count = asyncio.get_running_loop(), Assembler(), 0
    async with asyncio.timeout(20):
        while True:
            for frame in frames.feed(await loop.sock_recv(guest.end, 65_536)):
                if frame.kind == kind:
                    return count
                count += 1
