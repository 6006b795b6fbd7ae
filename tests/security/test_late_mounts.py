"""What is mounted and unmounted on the host while a process has sandboxes; none of it is shared."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloister import Limits, Sandbox
from cloister.node import stock
from cloister.store.pool import POOL, detach_pool

pytestmark = [
    pytest.mark.security,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a pool"),
]

POOL_SIZE = "256MiB"


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cloister-late-", dir="/dev/shm") as name:
        path = Path(name) / "state"
        monkeypatch.setenv("CLOISTER_STATE", str(path))
        yield path
        stock.close_store()
        if os.path.ismount(path / POOL):
            detach_pool(path)


def make_pool_elsewhere() -> None:
    """As somebody at another terminal does."""
    command = [sys.executable, "-m", "cloister", "setup", "storage", "--size", POOL_SIZE]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


async def test_a_pool_that_is_made_later_is_used_by_a_process_that_has_sandboxes(
    state: Path,
) -> None:
    async with Sandbox() as first:
        (await first.run("echo before > kept")).check()
        make_pool_elsewhere()
        async with Sandbox(storage="disk", limits=Limits(disk="16MiB")) as second:
            result = await second.run(["dd", "if=/dev/zero", "of=large", "bs=1M", "count=32"])
            assert result.exit_code and "quota" in result.stderr
            assert (await second.run("rm large; echo fits > small; cat small")).stdout == "fits\n"
        assert (await first.run("cat kept")).stdout == "before\n"


async def test_a_pool_is_let_go_when_it_is_unmounted_beside_a_process_that_has_sandboxes(
    state: Path,
) -> None:
    make_pool_elsewhere()
    async with Sandbox() as first:
        async with Sandbox(storage="disk", limits=Limits(disk="16MiB")) as second:
            (await second.run("echo here > file")).check()
        stock.close_store()
        detach_pool(state)
        deadline = time.monotonic() + 20
        while found := devices_of(state):
            assert time.monotonic() < deadline, f"{found} is held"
            # The kernel takes it away by itself, and tells nobody.
            time.sleep(0.02)
        assert (await first.run("echo still")).stdout == "still\n"


def devices_of(directory: Path) -> str:
    command = ["losetup", "--noheadings", "--list", "--output", "BACK-FILE"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return "".join(line for line in printed.splitlines() if str(directory) in line)


# A host that shares its mounts, as those of systemd do; in a view of its own, which ends with it.
SHARING_HOST = """
import asyncio, subprocess, sys
from pathlib import Path
from cloister import Mount, Sandbox

async def main():
    granted = Path(sys.argv[1])
    late = granted / "late"
    late.mkdir()
    mounts = [Mount(granted, "/granted", "write")]
    async with Sandbox(mounts=mounts) as before:
        print((await before.run("ls -A /granted/late")).check().stdout.split())
        subprocess.run(["mount", "-t", "tmpfs", "late", str(late)], check=True)
        (late / "new").touch()
        print((await before.run("ls -A /granted/late")).check().stdout.split())
        async with Sandbox(mounts=mounts) as after:
            print((await after.run("ls -A /granted/late")).check().stdout.split())
            shared = (await after.run("grep -c -e shared: -e master: /proc/self/mountinfo")).stdout
            print(shared.strip())
        subprocess.run(["umount", str(late)], check=True)
        async with Sandbox(mounts=mounts) as last:
            print((await last.run("ls -A /granted/late")).check().stdout.split())

asyncio.run(main())
"""


def test_a_mount_of_a_host_that_shares_them_is_seen_by_who_starts_later_and_shared_by_nobody(
    tmp_path: Path,
) -> None:
    command = ["unshare", "--mount", "--propagation", "shared", sys.executable, "-c", SHARING_HOST]
    told = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
    assert told.stdout.splitlines() == ["[]", "[]", "['new']", "0", "[]"], told.stderr
