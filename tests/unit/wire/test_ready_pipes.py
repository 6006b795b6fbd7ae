"""Pipes that are made before they are needed: used once each, and never left behind."""

from __future__ import annotations

import asyncio
import os
import socket
import weakref
from collections.abc import Iterator

import pytest

from cloister.errors import CloisterError
from cloister.wire import Link
from cloister.wire.streams import close_ready_pipes, make_pipes_ready, open_pipe


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("cloister.wire.link._open", weakref.WeakSet())
    close_ready_pipes()
    yield
    close_ready_pipes()


def open_descriptors() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/dev/fd/{name}")}


def test_a_ready_pipe_is_handed_out_once() -> None:
    before = open_descriptors()
    make_pipes_ready()
    made = open_descriptors() - before
    pipes = [open_pipe() for _ in range(3)]
    ends = [end for pipe in pipes for end in pipe]
    assert len(set(ends)) == len(ends)
    assert made < set(ends)
    for end in ends:
        os.close(end)
    assert open_descriptors() == before


def test_a_forked_process_has_none_of_its_parents() -> None:
    before = len(open_descriptors())
    make_pipes_ready()
    child = os.fork()
    if child == 0:
        os._exit(len(open_descriptors()) - before)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("others", [0, 1])
async def test_none_stays_when_the_last_guest_has_gone(others: int) -> None:
    def lost(error: CloisterError) -> None:
        raise error

    pairs = [socket.socketpair() for _ in range(others + 1)]
    links = [Link(ours, carries_descriptors=True, on_lost=lost) for ours, _ in pairs]
    make_pipes_ready()
    before = len(open_descriptors())
    links[0].close()
    await asyncio.sleep(0)
    # Its own socket, and both ends of two pipes where nobody is left.
    assert before - len(open_descriptors()) == (1 if others else 5)
    for link in links:
        link.close()
    for _, theirs in pairs:
        theirs.close()
