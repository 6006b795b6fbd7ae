"""Requests to a kept sandbox from another process: answered, bounded, and never a crash."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from cloister.errors import (
    AlreadyExists,
    CannotEnforce,
    CloisterError,
    GuestGone,
    HostError,
    LaunchFailed,
    NotFound,
    RequestError,
)
from cloister.node import control_channel, control_place
from cloister.node.control_channel import Channel, ChannelClosed, describe_error, error_from
from cloister.node.control_client import Remote
from cloister.node.control_compared import pack_compared, unpack_compared
from cloister.node.control_listener import Controlled, Listener
from cloister.node.control_place import connect_to, listen_at, place_of, sweep
from cloister.store.changes import EntryType as Type
from cloister.store.changes import Given, Owners, Skeleton, Stratum


class Sandbox:
    """Stands for a sandbox, and writes down what it is asked."""

    id = "sb_test"
    is_paused = False
    host_pids = (1, 2, 3)

    def __init__(self) -> None:
        self.asked: list[object] = []

    async def snapshot(self, name: str | None = None, *, memory: bool = False) -> Any:
        self.asked.append(("snapshot", name))
        if name == "taken":
            raise AlreadyExists("it exists", what="taken")
        if name == "broken":
            raise ZeroDivisionError("by zero")
        return type("Taken", (), {"id": "snap-1"})

    async def pause(self) -> None:
        self.asked.append("pause")

    async def stop(self) -> None:
        self.asked.append("stop")


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


@asynccontextmanager
async def listening(directory: Path) -> AsyncIterator[tuple[Sandbox, Path, Listener]]:
    place = directory / "a.sock"
    sandbox = Sandbox()
    listener = Listener(cast("Controlled", sandbox), listen_at(place), place)
    try:
        yield sandbox, place, listener
    finally:
        listener.close()


async def answer_to(place: Path, sent: bytes) -> dict[str, Any]:
    """Send bytes as they are, and return the message that comes back."""
    end = connect_to(place)
    assert end is not None
    channel = Channel(end)
    try:
        await asyncio.get_running_loop().sock_sendall(end, sent)
        return (await channel.receive())[0]
    finally:
        channel.close()


def framed(message: object) -> bytes:
    body = json.dumps(message).encode()
    return struct.pack("!I", len(body)) + body


def test_what_is_asked_is_done_and_answered(tmp_path: Path) -> None:
    async def work() -> None:
        async with listening(tmp_path) as (sandbox, place, _):
            remote = Remote("a", place)
            described = await remote.describe()
            assert (described.pid, described.sandbox, described.processes) == (
                *(os.getpid(), "sb_test"),
                2,
            )
            assert await remote.snapshot("before") == "snap-1"
            await remote.pause()
            await remote.stop()
            assert sandbox.asked == [("snapshot", "before"), "pause", "stop"]

    run(work())


def test_an_error_arrives_as_what_it_was(tmp_path: Path) -> None:
    async def work() -> None:
        async with listening(tmp_path) as (_, place, _):
            remote = Remote("a", place)
            with pytest.raises(AlreadyExists, match="it exists") as caught:
                await remote.snapshot("taken")
            assert caught.value.what == "taken"
            with pytest.raises(HostError, match="ZeroDivisionError"):
                await remote.snapshot("broken")
            assert (await remote.describe()).sandbox == "sb_test"

    run(work())


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (struct.pack("!I", 2**31), "bytes"),
        (struct.pack("!I", 3) + b"abc", "not JSON"),
        (struct.pack("!I", 2) + b"[]", "object"),
        (framed({"do": "describe"}), "version"),
        (framed({"version": 9, "do": "describe"}), "version"),
        (framed({"version": 2, "do": "format"}), "no request"),
        (framed({"version": 2, "do": ["describe"]}), "no request"),
        (framed({"version": 2, "do": "snapshot", "name": 1}), "write text"),
        (framed({"version": 2, "do": "rewind", "to": None}), "step"),
        (framed({"version": 2, "do": "exec", "command": ["true"]}), "descriptors"),
        (framed({"version": 2, "do": "exec", "command": "true", "env": 1}), "env"),
        (framed({"version": 2, "do": "exec", "command": "true", "pty": [1]}), "pty"),
        (b"[" * 100_000, "bytes"),
        (struct.pack("!I", 100_000) + b"[" * 100_000, "not JSON"),
    ],
)
def test_nonsense_is_answered_and_the_next_request_too(
    tmp_path: Path, sent: bytes, words: str
) -> None:
    async def work() -> None:
        async with listening(tmp_path) as (_, place, _):
            answer = await answer_to(place, sent)
            assert words in answer["error"]["message"]
            assert (await Remote("a", place).describe()).sandbox == "sb_test"

    run(work())


def test_descriptors_that_nobody_asked_for_are_closed(tmp_path: Path) -> None:
    async def work() -> None:
        async with listening(tmp_path) as (_, place, _):
            before = os.listdir("/proc/self/fd")
            for count in (1, 4, 9):
                end = connect_to(place)
                assert end is not None
                read, write = os.pipe()
                message = [framed({"version": 2, "do": "describe"})]
                socket.send_fds(end, message, [read] * count)
                channel = Channel(end)
                answer, _ = await channel.receive()
                assert ("ok" in answer) == (count <= 4)
                channel.close()
                os.close(read)
                os.close(write)
            assert os.listdir("/proc/self/fd") == before

    run(work())


def test_one_who_says_nothing_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloister.node import control_listener

    monkeypatch.setattr(control_listener, "_REQUEST_S", 0.1)

    async def work() -> None:
        async with listening(tmp_path) as (_, place, listener):
            silent = connect_to(place)
            assert silent is not None
            assert (await Remote("a", place).describe()).sandbox == "sb_test"
            await listener.wait_answered()
            assert b"nothing was asked" in silent.recv(4096)
            silent.close()

    run(work())


def test_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with listening(tmp_path) as (sandbox, place, _):
            remote = Remote("a", place)
            with monkeypatch.context() as other:
                other.setattr(Channel, "peer", property(lambda self: (1, 12_345)))
                with pytest.raises(RequestError, match="another user"):
                    await remote.stop()
            assert sandbox.asked == []
            await remote.stop()
            assert sandbox.asked == ["stop"]

    run(work())


def test_the_other_end_is_who_the_kernel_says() -> None:
    async def work() -> None:
        one, other = socket.socketpair()
        channel = Channel(one)
        assert channel.peer == (os.getpid(), os.geteuid())
        other.close()
        with pytest.raises(ChannelClosed):
            await channel.receive()
        channel.close()

    run(work())


def test_a_long_message_arrives_whole_and_too_long_a_one_is_not_sent() -> None:
    async def work() -> None:
        one, other = socket.socketpair()
        near, far = Channel(one), Channel(other)
        text = "\udcff" * 500_000
        _, (message, _) = await asyncio.gather(near.send({"text": text}), far.receive())
        assert message == {"text": text}
        with pytest.raises(RequestError, match="longer"):
            await near.send({"text": "x" * control_channel.LONGEST_BYTES})
        near.close()
        far.close()

    run(work())


def test_nobody_listens_after_the_end(tmp_path: Path) -> None:
    async def work() -> None:
        async with listening(tmp_path) as (_, place, _):
            assert place.is_socket()
        assert not place.exists()
        assert connect_to(place) is None
        with pytest.raises(GuestGone, match="ended meanwhile"):
            await Remote("a", place).describe()

    run(work())


def test_what_a_dead_process_left_is_swept_and_what_listens_is_not(tmp_path: Path) -> None:
    dead, alive = tmp_path / "dead.sock", tmp_path / "alive.sock"
    listen_at(dead).close()
    assert dead.is_socket()
    end = listen_at(alive)
    assert not dead.exists()
    sweep(tmp_path)
    assert alive.is_socket()
    end.close()


def test_a_path_may_be_longer_than_an_address(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    end = listen_at(deep / "a.sock")
    near = connect_to(deep / "a.sock")
    assert near is not None
    near.close()
    end.close()


def test_the_same_name_in_another_store_is_another_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_place, "runtime_directory", lambda: tmp_path)
    assert place_of(Path("/one"), "a") != place_of(Path("/two"), "a")
    assert place_of(Path("/one"), "a") == place_of(Path("/one"), "a")


@pytest.mark.parametrize(
    "error",
    [
        NotFound("no such thing", what="x"),
        LaunchFailed("no", step="mount", errno=1, hint="do this"),
        CannotEnforce("memory", limit="memory", why="no group", enable="make one"),
        GuestGone("ended", reason="stopped"),
    ],
)
def test_an_error_is_the_same_on_the_other_side(error: CloisterError) -> None:
    found = error_from(json.loads(json.dumps(describe_error(error))))
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        {"kind": "PolicyError", "message": "m"},
        {"kind": "Any", "message": "m"},
        {"kind": "__doc__", "message": "m"},
        {"kind": 3, "message": 4, "details": 5},
    ],
)
def test_an_error_of_another_kind_is_the_hosts(found: object) -> None:
    assert type(error_from(found)) is HostError


def test_what_is_compared_is_the_same_on_the_other_side() -> None:
    compared = (
        (
            Stratum("/", Path("/upper"), (Path("/lower"),), (Path("/sealed"),)),
            Stratum("/usr", Path("/odd\udcff"), ()),
        ),
        Skeleton(
            {b"/a\xff": Given(Type.LINK, 0o777, b"\xfe"), b"/d": Given(Type.DIRECTORY, 0o755)}
        ),
        Owners(((5, 0, 10),), ()),
    )
    assert unpack_compared(json.loads(json.dumps(pack_compared(compared)))) == compared
    with pytest.raises(HostError, match="another form"):
        unpack_compared({"strata": 1})
