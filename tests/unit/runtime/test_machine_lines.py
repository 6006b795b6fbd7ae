"""The lines to a machine's QEMU and to its first process, with somebody else at the far end."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from cloister.errors import GuestGone
from cloister.runtime.microvm import monitor
from cloister.runtime.microvm.desk import Desk
from cloister.runtime.microvm.monitor import Monitor


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Our end, and the machine's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


class Qemu:
    """Greets, and answers what it is told to."""

    def __init__(self, theirs: socket.socket) -> None:
        self._socket = theirs
        self._held = b""
        self._say({"QMP": {}})

    async def asked(self) -> dict[str, Any]:
        while b"\n" not in self._held:
            data = await asyncio.get_running_loop().sock_recv(self._socket, 4096)
            self._held += data
        line, _, self._held = self._held.partition(b"\n")
        question: dict[str, Any] = json.loads(line)
        return question

    def answer(self, question: dict[str, Any], value: object) -> None:
        self._say({"return": value, "id": question["id"]})

    async def greet(self) -> None:
        self.answer(await self.asked(), {})

    def _say(self, value: object) -> None:
        self._socket.sendall(json.dumps(value).encode() + b"\n")


async def test_an_answer_that_nobody_waits_for_any_more_is_not_that_to_the_next_question(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    line, qemu = Monitor(pair[0]), Qemu(pair[1])
    first = asyncio.create_task(line.ask("first"))
    await qemu.greet()
    late = await qemu.asked()
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.create_task(line.ask("second"))
    asked = await qemu.asked()
    qemu.answer(late, "of the first")
    qemu.answer(asked, "of the second")
    assert await second == "of the second"


async def test_a_qemu_that_does_not_answer_or_is_gone_is_told_so(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Monitor(pair[0])
    Qemu(pair[1])
    with monkeypatch.context() as patch:
        patch.setattr(monitor, "_ANSWER_S", 0.1)
        with pytest.raises(GuestGone, match="said nothing of query") as hung:
            await line.ask("query")
    assert hung.value.reason == "hung"
    pair[1].close()
    with pytest.raises(GuestGone, match="QEMU is gone"):
        await line.ask("query")


async def test_what_was_given_up_at_the_desk_is_answered_before_what_is_asked_next(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    desk, loop = Desk(pair[0]), asyncio.get_running_loop()
    first = asyncio.create_task(desk.freeze(True))
    letter = await loop.sock_recv(pair[1], 4096)
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.create_task(desk.freeze(False))
    assert len(await loop.sock_recv(pair[1], 4096)) == len(letter)
    pair[1].send(b"D")
    done, _ = await asyncio.wait([second], timeout=0.1)
    assert not done
    pair[1].send(b"D")
    await second
