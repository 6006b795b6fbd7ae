"""A launcher that answers while it is asked: neither of the two waits for the other for ever."""

from __future__ import annotations

import asyncio
import os
import socket
import threading

import pytest

from cloister.runtime.namespace.outbox import Outbox

COUNT = 3000


def pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    ours.setblocking(False)
    return ours, theirs


async def test_more_is_asked_than_fits_while_the_answers_do_not_fit_either() -> None:
    ours, theirs = pair()

    def answer() -> None:
        # As the launcher does: one question, one answer, and it waits until that is taken.
        with theirs:
            for _ in range(COUNT):
                theirs.send(theirs.recv(64))

    loop = asyncio.get_running_loop()
    heard: list[bytes] = []
    whole = asyncio.Event()

    def hear() -> None:
        heard.append(ours.recv(64))
        if len(heard) == COUNT:
            whole.set()

    loop.add_reader(ours.fileno(), hear)
    outbox = Outbox(ours, loop, lambda error: None)
    thread = threading.Thread(target=answer)
    thread.start()
    for number in range(COUNT):
        outbox.send(b"%d" % number, ())
    async with asyncio.timeout(60):
        await whole.wait()
    thread.join()
    assert heard == [b"%d" % number for number in range(COUNT)]
    loop.remove_reader(ours.fileno())
    outbox.clear()
    ours.close()


async def test_a_descriptor_that_waits_is_sent_though_its_owner_has_closed_it() -> None:
    ours, theirs = pair()
    outbox = Outbox(ours, asyncio.get_running_loop(), lambda error: None)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(100):
        read, write = os.pipe()
        os.write(write, b"%d" % number)
        outbox.send(b"x", (read,))
        os.close(read)
        os.close(write)
    for number in range(100):
        _, fds, _, _ = await asyncio.to_thread(socket.recv_fds, theirs, 64, 1)
        assert os.read(fds[0], 64) == b"%d" % number
        os.close(fds[0])
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    ours.close()
    theirs.close()


async def test_whoever_is_gone_is_told_of_once_and_nothing_stays_open() -> None:
    ours, theirs = pair()
    failures: list[OSError] = []
    failed = asyncio.Event()

    def fail(error: OSError) -> None:
        failures.append(error)
        outbox.clear()
        failed.set()

    outbox = Outbox(ours, asyncio.get_running_loop(), fail)
    read, write = os.pipe()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        outbox.send(b"x", (read,))
    theirs.close()
    async with asyncio.timeout(60):
        await failed.wait()
    with pytest.raises(OSError, match=r"[Bb]roken pipe|reset"):
        outbox.send(b"x", ())
    assert len(failures) == 1
    assert len(os.listdir("/proc/self/fd")) == before - 1
    for descriptor in (read, write):
        os.close(descriptor)
    ours.close()
