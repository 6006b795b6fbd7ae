"""Trees that somebody made to break whoever saves, compares or removes them."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from cloister import Limits, Sandbox

from .conftest import WALL

# Each entry is made through one program more behind gVisor, and in an emulated machine.
DEEP, WIDE = (8_000, 40_000) if WALL == "namespace" else (4_000, 20_000)
BOUND_S = 60

# Deeper than any path, wider than one look, and shut against everybody.
TREE = f"""
import os
os.chdir("/workspace")
os.mkdir("wide")
for number in range({WIDE}):
    os.close(os.open(f"wide/{{number}}", os.O_CREAT | os.O_WRONLY))
name = "n" * 20
for level in range({DEEP}):
    os.mkdir(name)
    if level % 1000 == 0:
        open("here", "w").write(str(level))
    os.chdir(name)
os.mkdir("bottom"); os.chmod("bottom", 0)
os.chdir("/workspace")
for number in range(200):
    shut = f"shut{{number}}"
    os.mkdir(shut); open(shut + "/x", "w").close(); os.chmod(shut, 0)
with open("sparse", "wb") as file:
    file.truncate(2**42)
loop = os.symlink("loop", "loop")
os.mkfifo("pipe")
"""
LOOK = "ls | wc -l; ls wide | wc -l; stat -c '%s %b' sparse; cat here; cd nnn*; cd nnn*; ls"


async def in_time(work):
    begun = time.monotonic()
    result = await work
    assert time.monotonic() - begun < BOUND_S
    return result


async def make_tree(sandbox: Sandbox) -> str:
    (await sandbox.run(["/usr/bin/python3", "-I", "-c", TREE], timeout=90)).check()
    return (await sandbox.run(LOOK)).check().stdout


async def test_deep_wide_and_shut_trees_are_saved_forked_and_removed(make) -> None:
    async with make() as sandbox:
        before = await make_tree(sandbox)
        taken = await in_time(sandbox.snapshot())
        async with Sandbox.fork(taken) as [fork]:
            assert (await fork.run(LOOK)).stdout == before
        await in_time(sandbox.rewind(taken))
        assert (await sandbox.run(LOOK)).stdout == before


async def test_such_a_tree_is_copied_while_something_runs(make, freezing) -> None:
    async with make() as sandbox:
        before = await make_tree(sandbox)
        await sandbox.start("sleep infinity")
        taken = await in_time(sandbox.snapshot())
        async with Sandbox.fork(taken) as [fork]:
            assert (await fork.run(LOOK)).stdout == before


async def test_such_a_tree_is_compared_and_counted(make, store) -> None:
    async with make() as sandbox:
        await make_tree(sandbox)
        seen = 0

        async def count() -> None:
            nonlocal seen
            async for _ in sandbox.diff("/workspace"):
                seen += 1

        await in_time(count())
        assert seen > WIDE + DEEP
        usage = await in_time(asyncio.to_thread(store.usage))
        # A hole of four tebibytes is no data.
        assert usage.total_bytes < 2**31


@pytest.mark.parametrize("profile", ["default", "root"])
async def test_what_a_sandbox_leaves_gives_nobody_on_the_host_anything(
    make, store, several_ids, profile: str
) -> None:
    """Set-id files of a sandbox are set-id files of nobody: the store lets no other user in."""
    user = "root" if profile == "root" else None
    async with make(profile=profile, keep="left") as sandbox:
        plant = "cp /bin/sh shell; chmod 6755 shell; chmod 777 .; ln -s /etc/shadow shadow"
        await sandbox.run(plant, user=user)
        modes = (await sandbox.run("stat -c %a shell", user=user)).stdout
        assert modes == "6755\n"
    top: Path = store.directory
    assert os.stat(top).st_mode & 0o777 == 0o700 and os.stat(top).st_uid == os.geteuid()
    if os.geteuid() == 0:
        disk = store.disks.find(store.kept.find("left").disk)
        shell = disk.path / "upper" / "%" / "workspace" / "shell"
        assert shell.stat().st_mode & 0o7777 == 0o6755
        become = ["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups"]
        process = await asyncio.create_subprocess_exec(
            # Another shell first: setpriv itself still has root's rights when it executes.
            *(*become, "/bin/sh", "-c", f"exec {shell} -c true"),
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert await process.wait() == 126
        nosuid = "nosuid" in mount_options(shell)
        assert nosuid or store.driver.name == "plain"


def mount_options(path: Path) -> str:
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    above = [line for line in lines if str(path).startswith(line[1].rstrip("/") + "/")]
    return max(above, key=lambda line: len(line[1]))[3]


async def test_links_planted_in_a_disk_lead_the_store_nowhere(make, store, tmp_path: Path) -> None:
    """Whatever lies where the store works, it is not followed out of it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("the host's")
    outside.chmod(0o777)
    async with make() as sandbox:
        await sandbox.run(
            f"ln -s {outside} link; mkdir d; ln -s {outside}/file d/file; ln -s / root"
        )
        taken = await sandbox.snapshot()
        async with Sandbox.fork(taken) as [fork]:
            assert (await fork.run("readlink link root")).stdout == f"{outside}\n/\n"
            assert not (await fork.run("cat d/file")).ok
        assert [each.path for each in await sandbox.diff("/workspace/link")] == [b"/workspace/link"]
    store.collect()
    assert (outside / "file").read_text() == "the host's"


async def test_a_disk_in_memory_and_one_in_the_store_agree(make) -> None:
    script = (
        "echo a > a; ln a b; mkdir -m 0700 d; echo c > d/c; chmod 4755 a; touch -d @5 d/c; rm b"
    )
    look = "find . -printf '%P %y %m %n %s %T@ %U %G\\n' | grep d/c; stat -c '%a %h' a"
    async with make() as stored, Sandbox(limits=Limits()) as light:
        for sandbox in (stored, light):
            await sandbox.run(script)
        assert (await stored.run(look)).stdout == (await light.run(look)).stdout
