"""A machine that lies, falls silent or ends at any byte of its wire harms and holds up nobody."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import Any

import pytest

from cloister import Limits, Result, Sandbox
from cloister.errors import CloisterError
from cloister.node import Node
from cloister.policy import DirectoryRoot
from cloister.runtime.microvm import runtime
from cloister.sandbox import errand
from cloister.wire.link import Link

from .machine_root import PLACE, machine_root

LIMITS = Limits(memory="192MiB", pids=64)
# What becomes of everything from some byte on; of a single byte; or the line is closed there.
FAULTS = ("garbage", "end", "flip", "flood", "stall")
_DEADLINE_S = 240.0
ATTEMPTS = 40


class Taken:
    """A socket of ours whose far end was taken over once it had said so many bytes."""

    def __init__(self, real: socket.socket, fault: str, honest_bytes: int) -> None:
        self._real = real
        self._fault = fault
        self._left = honest_bytes
        self._chance = random.Random(honest_bytes)
        self.said_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def recv(self, most: int) -> bytes:
        data = self._real.recv(most)
        self.said_bytes += len(data)
        honest, rest = data[: self._left], data[self._left :]
        self._left -= len(honest)
        if not rest:
            return data
        if self._fault == "flip":
            self._left = 2**62
            return honest + bytes([rest[0] ^ 1 << self._chance.randrange(8)]) + rest[1:]
        if self._fault == "end":
            # To be read again at once, whether the far end has anything else to say or not.
            self._real.shutdown(socket.SHUT_RD)
            return honest
        if self._fault == "stall":
            if honest:
                return honest
            raise BlockingIOError
        room = most - len(honest)
        return honest + self._chance.randbytes(room if self._fault == "flood" else len(rest))


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_MICROVM", str(PLACE))


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_a_wire_that_is_taken_over_at_any_byte_ends_its_own_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = _take_over(monkeypatch, "flip", 2**62)
    (await _live()).check()
    total_bytes = honest[-1].said_bytes
    # Nobody is to wait for a minute for one that does not greet, or says no more of a file.
    monkeypatch.setattr(runtime, "_GREETING_S", 10.0)
    monkeypatch.setattr(errand, "_STALL_S", 10.0)
    chance = random.Random(seed := random.getrandbits(32))
    async with Sandbox() as other:
        for attempt in range(ATTEMPTS):
            fault, at = FAULTS[attempt % len(FAULTS)], chance.randrange(total_bytes)
            taken = _take_over(monkeypatch, fault, at)
            async with asyncio.timeout(_DEADLINE_S):
                try:
                    await _live(run_s=2)
                except CloisterError:
                    assert any(each.said_bytes > at for each in taken), (seed, fault, at)
                else:
                    # A bit of what a program said, or on a busy host it was ended before that byte.
                    unheard = all(each.said_bytes <= at for each in taken)
                    assert fault == "flip" or unheard, (seed, fault, at)
            await Node.current().end_spares()
            assert (await other.run("echo well")).stdout == "well\n"
    monkeypatch.undo()
    monkeypatch.setenv("CLOISTER_MICROVM", str(PLACE))
    (await _live()).check()


def _take_over(monkeypatch: pytest.MonkeyPatch, fault: str, at: int) -> list[Taken]:
    """Have every machine from here on be taken over after so many bytes."""
    taken: list[Taken] = []
    init = _INIT

    def initialized(link: Link, control: socket.socket, **settings: Any) -> None:
        if settings["carries_descriptors"]:
            init(link, control, **settings)
            return
        taken.append(Taken(control, fault, at))
        init(link, taken[-1], **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(Link, "__init__", initialized)
    return taken


_INIT = Link.__init__


async def _live(run_s: float = 60) -> Result:
    root = DirectoryRoot(str(machine_root()))
    async with Sandbox(root=root, trust="hostile", limits=LIMITS) as sandbox:
        ran = await sandbox.run(["seq", "2000"], timeout=run_s)
        await sandbox.files.write("/workspace/a", b"x" * 10_000)
        assert len(await sandbox.files.read("/workspace/a")) <= 10_000
        await sandbox.files.list("/workspace")
        return ran
