"""What is said to the launcher, and what it answers, byte by byte as wire/golden.txt has it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from pathlib import Path

import pytest

from cloister.errors import CloisterError, LaunchFailed
from cloister.runtime.namespace import launcher as launcher_room
from cloister.runtime.namespace.cgroups import Layout
from cloister.runtime.namespace.ids import SubIds
from cloister.runtime.namespace.launcher import Launched, Launcher
from cloister.runtime.namespace.runtime import cell_binary

LAYOUT = Layout({"memory": Path("/groups/memory")}, Path("/groups/unified"), frozenset(), {})


class Conversation:
    """A launcher object whose far end is this test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(launcher_room, "PUBLIC_ETC", ("ssl", "mime.types"))
        monkeypatch.setattr(
            launcher_room, "synthetic_files", lambda: (("etc/hosts", 0o644, b"x\n"),)
        )
        ours, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(["/bin/true"], stderr=subprocess.PIPE)
        self.launcher = Launcher(self.process, ours)

    def heard(self) -> bytes:
        return self.far.recv(1 << 20)

    async def close(self) -> None:
        self.far.close()
        await self.launcher.close()


@pytest.mark.parametrize(
    ("name", "euid", "sub_ids"),
    [
        ("to-launcher-configure-root", 0, None),
        (
            "to-launcher-configure-ranges",
            1000,
            SubIds(
                uids=((100_000, 65_536),),
                gids=((200_000, 65_536), (300_000, 1)),
                uid_helper="/usr/bin/newuidmap",
                gid_helper="/usr/bin/newgidmap",
            ),
        ),
        ("to-launcher-configure-single", 1000, None),
    ],
)
async def test_the_launcher_is_configured_as_golden(
    golden: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    euid: int,
    sub_ids: SubIds | None,
) -> None:
    talk = Conversation(monkeypatch)
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    waiting = asyncio.create_task(talk.launcher.configure(Path("/run/cloister/1"), sub_ids, LAYOUT))
    await asyncio.sleep(0)
    assert talk.heard().hex() == golden[name].hex()
    talk.far.send(golden["from-launcher-ready"])
    await waiting
    assert talk.launcher.landlock_version == 7
    await talk.close()


async def test_a_launch_is_asked_for_and_answered_as_golden(
    golden: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Conversation(monkeypatch)
    talk.far.send(golden["from-launcher-awake"])
    await talk.launcher._awake
    refused: list[CloisterError] = []
    talk.launcher.launch(11, b"plan", (talk.far.fileno(),), refused.append)
    assert talk.heard().hex() == golden["to-launcher-launch"].hex()
    talk.far.send(golden["from-launcher-launched"])
    assert await talk.launcher.launched(11) == Launched(4242, 77)
    assert not refused
    await talk.close()


async def test_a_failed_launch_is_answered_as_golden(
    golden: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Conversation(monkeypatch)
    refused: asyncio.Future[CloisterError] = asyncio.get_running_loop().create_future()
    talk.launcher.launch(11, b"plan", (talk.far.fileno(),), refused.set_result)
    talk.heard()
    talk.far.send(golden["from-launcher-failed"])
    error = await refused
    assert isinstance(error, LaunchFailed)
    assert (error.step, error.errno) == ("pivot", 1)
    assert "why \N{REPLACEMENT CHARACTER}" in str(error)
    await talk.close()


async def test_an_end_is_asked_for_and_answered_as_golden(
    golden: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Conversation(monkeypatch)
    gone: list[int] = []
    talk.launcher.on_gone = gone.append
    talk.launcher._alive.add(11)
    waiting = talk.launcher.destroy(11)
    assert talk.heard().hex() == golden["to-launcher-destroy"].hex()
    talk.far.send(golden["from-launcher-gone"])
    await waiting
    assert gone == [11]
    await talk.close()


async def test_a_freeze_is_asked_for_and_answered_as_golden(
    golden: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Conversation(monkeypatch)
    waiting = asyncio.create_task(talk.launcher.freeze(11, True))
    await asyncio.sleep(0)
    assert talk.heard().hex() == golden["to-launcher-freeze"].hex()
    talk.far.send(golden["from-launcher-frozen"])
    assert await waiting == 95
    await talk.close()


@pytest.mark.parametrize(
    ("asked", "answered", "errno", "rest"),
    [
        ("to-launcher-destroy", "from-launcher-gone", 0, b"\0"),
        ("to-launcher-freeze", "from-launcher-frozen", 3, b""),
        ("to-launcher-launch", "from-launcher-failed", 22, None),
    ],
)
def test_a_real_launcher_answers_in_the_golden_layout(
    golden: dict[str, bytes], asked: str, answered: str, errno: int, rest: bytes | None
) -> None:
    """It knows no sandbox 11, so each answer is the golden one with another number in it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [cell_binary(), "zygote", str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    with ours, theirs:
        ours.settimeout(10)
        assert ours.recv(1 << 20) == golden["from-launcher-awake"]
        ours.send(golden[asked])
        answer = ours.recv(1 << 20)
    assert process.wait(timeout=10) == 0
    head = golden[answered][:9] + errno.to_bytes(4, "little")
    assert answer[:13] == head
    if rest is not None:
        assert answer[13:] == rest
    else:
        assert answer[13:21] == b"\x04\0\0\0plan"
