"""Memory is saved with the disk: programs go on in the sandbox, in forks, and after its owner."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from cloister import Limits, Process, Sandbox
from cloister.errors import Busy, GuestGone, HostError, LaunchFailed, RequestError, Unsupported
from cloister.node import Node
from cloister.node.memory_key import SETTING
from cloister.runtime.doors import HTTP_PROXY_PORT
from cloister.runtime.gvisor import runtime, saving
from cloister.runtime.namespace.memory_place import is_in_memory
from cloister.store import Store

from .on_gvisor import needs_gvisor

Make = Callable[..., Sandbox]

pytestmark = needs_gvisor

# One line for each number, with bytes of its own; a word that is nowhere but in its memory.
COUNTING = """
import os, time
word = "".join(["kno", "wn-only", "-inside"])
number = 0
while True:
    number += 1
    with open("/workspace/numbers", "a") as file:
        file.write(f"{number} {os.urandom(8).hex()}\\n")
    print(number, flush=True)
    time.sleep(0.02)
"""
FORKS = 3


@pytest.fixture(autouse=True)
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "memory.key"
    path.write_text("ab" * 32)
    path.chmod(0o600)
    monkeypatch.setenv(SETTING, str(path))
    return path


async def _numbers(sandbox: Sandbox) -> list[tuple[int, str]]:
    text = (await sandbox.run(["cat", "/workspace/numbers"])).stdout
    pairs = (line.split(" ") for line in text.splitlines())
    return [(int(number), noise) for number, noise in pairs]


async def _line(program: Process) -> bytes:
    """Return what a program says up to the end of a line; it may come in pieces."""
    said = b""
    async with asyncio.timeout(60):
        while not said.endswith(b"\n"):
            said += await program.stdout.read()
    return said


async def _beyond(sandbox: Sandbox, count: int) -> list[tuple[int, str]]:
    """Return the numbers once there are more than so many."""
    async with asyncio.timeout(30):
        while len(found := await _numbers(sandbox)) <= count:
            await asyncio.sleep(0.02)
    return found


async def test_a_running_program_goes_on_in_each_fork_and_where_it_was(
    make: Make, state: Path
) -> None:
    sandbox = make(trust="untrusted", keep="task")
    async with sandbox:
        program = await sandbox.start(["python3", "-u", "-c", COUNTING])
        before = await _beyond(sandbox, 3)
        saved = await sandbox.snapshot("mid-run", memory=True)
        assert saved.name == "mid-run"
        # It goes on as if nothing had been, and so do its streams.
        after = await _beyond(sandbox, len(before) + 3)
        assert [number for number, _ in after] == [*range(1, len(after) + 1)]
        first = b""
        while first.count(b"\n") < len(before) + 3:
            first += await program.stdout.read()
        assert first.split() == [b"%d" % (n + 1) for n in range(len(first.split()))]
        async with Sandbox.fork("task@mid-run", count=FORKS) as forks:
            found = await asyncio.gather(*(_beyond(fork, len(before) + 3) for fork in forks))
            for numbers in found:
                assert [number for number, _ in numbers] == [*range(1, len(numbers) + 1)]
            later = [{noise for _, noise in numbers[-2:]} for numbers in (*found, after)]
            assert len(set.union(*later)) == 2 * (FORKS + 1)
            told = [(await fork.run(["cat", "/dev/cloister/renewal"])).stdout for fork in forks]
            assert told == [f"renewal=1\nsandbox={fork.id}\n" for fork in forks]
            random = {(await fork.run("head -c 16 /dev/urandom | od -x")).stdout for fork in forks}
            assert len(random) == FORKS
        assert (await sandbox.run(["cat", "/dev/cloister/renewal"])).stdout.startswith("renewal=0")
        (sealed,) = (state / "memory").glob("*.sealed")
        assert b"known-only-inside" not in sealed.read_bytes()
        with pytest.raises(RequestError, match="leave limits out"):
            await Sandbox.fork("task@mid-run", limits={"pids": 5})


async def test_a_sandbox_paused_to_the_disk_goes_on_and_is_not_begun_anew_meanwhile(
    make: Make, key: Path
) -> None:
    sandbox = make(trust="untrusted", keep="task")
    await sandbox.open()
    await sandbox.start(["python3", "-u", "-c", COUNTING])
    before = await _beyond(sandbox, 3)
    await sandbox.pause_to_disk()
    with pytest.raises(Busy, match="paused on the disk"):
        await make(trust="untrusted", keep="task").open()
    key.write_text("cd" * 32)
    with pytest.raises(HostError, match="another key"):
        await Sandbox.resumed("task")
    key.write_text("ab" * 32)
    again = await Sandbox.resumed("task")
    try:
        after = await _beyond(again, len(before) + 3)
        assert [number for number, _ in after] == [*range(1, len(after) + 1)]
    finally:
        await again.stop()
    # Once: what has gone on from there is not there again.
    with pytest.raises(RequestError, match="not paused"):
        await Sandbox.resumed("task")


async def test_memory_goes_with_its_snapshot(make: Make, state: Path, store: Store) -> None:
    async with make(trust="untrusted", keep="task") as sandbox:
        saved = await sandbox.snapshot("here", memory=True)
        assert [*(state / "memory").iterdir()]
        await asyncio.to_thread(store.snapshots.remove, saved)
        assert not [*(state / "memory").iterdir()]


async def test_a_wall_that_shares_the_hosts_kernel_refuses_to_save_memory(make: Make) -> None:
    async with make(keep="task", runtime="namespace") as sandbox:
        with pytest.raises(Unsupported, match="cannot save memory"):
            await sandbox.snapshot("here", memory=True)
        assert (await sandbox.run("echo still here")).stdout == "still here\n"


async def test_a_way_out_is_there_again_after_memory_was_saved_and_what_was_open_is_cut(
    make: Make,
) -> None:
    holding = f"""
import socket
with socket.create_connection(("127.0.0.1", {HTTP_PROXY_PORT})) as proxy:
    print("open", flush=True)
    try:
        print("ended" if not proxy.recv(1) else "heard")
    except ConnectionResetError:
        print("cut")
"""
    asking = ["curl", "-sS", "-x", f"http://127.0.0.1:{HTTP_PROXY_PORT}", "http://denied.test/"]
    async with make(trust="untrusted", keep="task", egress=["allowed.test"]) as sandbox:
        program = await sandbox.start(["python3", "-u", "-c", holding])
        assert await _line(program) == b"open\n"
        await sandbox.snapshot("here", memory=True)
        assert await _line(program) == b"cut\n"
        assert "denied" in (await sandbox.run(asking)).stdout
        with pytest.raises(RequestError, match="grants=True"):
            await Sandbox.fork("task@here")
        async with Sandbox.fork("task@here", grants=True) as (fork,):
            assert "denied" in (await fork.run(asking)).stdout
            assert (await fork.traffic()).denied


async def test_a_sandbox_that_has_nearly_all_its_memory_is_saved_to_memory(make: Make) -> None:
    fill = "import os, sys; held = os.urandom(150 << 20); print('full', flush=True); input()"
    limits = Limits(memory="192MiB", disk="unlimited")
    async with make(trust="untrusted", storage="disk", limits=limits) as sandbox:
        program = await sandbox.start(["python3", "-c", fill], stdin=True)
        assert await _line(program) == b"full\n"
        place = Node.current().runtime_for(sandbox.policy).memory_place("none")  # type: ignore[attr-defined]
        assert is_in_memory(place.parent)
        await sandbox.snapshot("full", memory=True)
        assert (await sandbox.run(["echo", "alive"])).stdout == "alive\n"


HOLDING = """
import os
file = open("/workspace/gone", "w")
os.unlink("/workspace/gone")
print("held", flush=True)
input()
file.close()
print("closed", flush=True)
input()
"""


async def test_a_file_that_has_no_name_any_more_is_waited_for_and_ends_nobody(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "_SAVABLE_S", 0.1)
    async with make(trust="untrusted", runtime="gvisor", storage="disk") as sandbox:
        program = await sandbox.start(["python3", "-c", HOLDING], stdin=True)
        assert await _line(program) == b"held\n"
        with pytest.raises(Busy, match=r"process .* holds /workspace/gone"):
            await sandbox.snapshot("never", memory=True)
        # Nothing was lost by it: the program goes on, and once it has closed the file it is saved.
        await program.stdin.write(b"\n")
        assert await _line(program) == b"closed\n"
        await sandbox.snapshot("later", memory=True)
        assert (await sandbox.run(["echo", "alive"])).stdout == "alive\n"


@pytest.mark.parametrize("survives", [True, False])
async def test_a_save_that_fails_leaves_it_running_or_says_that_it_is_lost(
    make: Make, monkeypatch: pytest.MonkeyPatch, survives: bool
) -> None:
    async with make(trust="untrusted", storage="disk") as sandbox:

        async def fails(word: object) -> None:
            for pid in () if survives else sandbox.guest.host_pids:  # type: ignore[attr-defined]
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"runsc-sandbox\0"):
                        held = os.pidfd_open(pid)
                        os.kill(pid, signal.SIGKILL)
                        await asyncio.to_thread(select.select, [held], [], [])
                        os.close(held)
            raise LaunchFailed("runsc could not save the memory", step="checkpoint")

        monkeypatch.setattr(runtime, "save", fails)
        with pytest.raises(LaunchFailed if survives else GuestGone):
            await sandbox.snapshot("never", memory=True)
        if survives:
            assert (await sandbox.run(["echo", "alive"])).stdout == "alive\n"
        else:
            assert not sandbox.is_running
            with pytest.raises(GuestGone):
                await sandbox.run(["true"])
