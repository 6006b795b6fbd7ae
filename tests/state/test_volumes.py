"""Volumes and pauses: what is shared on purpose, and what stands still."""

from __future__ import annotations

import asyncio

import pytest

from cloister import Busy, LaunchFailed, NotFound, RequestError, Sandbox, Unsupported, Volume
from cloister.cli.kept import opened_workspace
from cloister.node import Occasion


async def test_a_volume_holds_what_one_sandbox_wrote_for_the_next(make, store) -> None:
    await Volume.create("cache", "unlimited")
    async with make(volumes=["cache:/mnt/cache"]) as sandbox:
        (await sandbox.run("mkdir /mnt/cache/d; echo kept > /mnt/cache/d/file")).check()
    async with make(volumes=["cache:/home/user/elsewhere"]) as sandbox:
        assert (await sandbox.run("cat ~/elsewhere/d/file")).stdout == "kept\n"


async def test_a_volume_works_for_a_sandbox_in_memory(state, store) -> None:
    await Volume.create("cache", "unlimited")
    async with Sandbox(volumes=["cache:/mnt/cache"]) as sandbox:
        (await sandbox.run("echo kept > /mnt/cache/file")).check()
    async with Sandbox(volumes=["cache:/mnt/cache"]) as sandbox:
        assert (await sandbox.run("cat /mnt/cache/file")).stdout == "kept\n"


async def test_sandboxes_that_share_a_volume_see_each_other_at_once(make, store) -> None:
    await Volume.create("shared", "unlimited")
    settings = {"volumes": ["shared:/mnt/shared"]}
    async with make(**settings) as one, make(**settings) as two:
        await one.run("echo from one > /mnt/shared/file")
        assert (await two.run("cat /mnt/shared/file")).stdout == "from one\n"


async def test_a_volume_that_is_read_takes_nothing(make, store) -> None:
    await Volume.create("given", "unlimited")
    async with make(volumes=["given:/mnt/given"]) as sandbox:
        (await sandbox.run("echo whole > /mnt/given/file")).check()
    async with make(volumes=["given:/mnt/given:read"], profile="root") as sandbox:
        spoil = "cd /mnt/given; echo x > file; rm file; touch new; chmod 777 .; mv file other"
        assert not (await sandbox.run(spoil, user="root")).ok
        assert (await sandbox.run("cat /mnt/given/file; ls /mnt/given")).stdout == "whole\nfile\n"
    async with make(volumes=["given:/mnt/given"]) as sandbox:
        assert (await sandbox.run("cat /mnt/given/file; ls /mnt/given")).stdout == "whole\nfile\n"


async def test_a_volume_is_no_part_of_snapshots_and_no_rewind_changes_it(make, store) -> None:
    await Volume.create("apart", "unlimited")
    async with make(volumes=["apart:/mnt/apart"]) as sandbox:
        await sandbox.run("echo 1 > /mnt/apart/file; echo 1 > file")
        taken = await sandbox.snapshot("one")
        await sandbox.run("echo 2 > /mnt/apart/file; echo 2 > file")
        await sandbox.rewind("one")
        assert (await sandbox.run("cat file /mnt/apart/file")).stdout == "1\n2\n"
        paths = [change.path for change in await sandbox.diff()]
        assert b"/mnt/apart/file" not in paths and b"/workspace/file" in paths
    async with Sandbox.fork(taken) as [fork]:
        assert (await fork.run("cat file; cat /mnt/apart/file")).stdout == "1\n"


async def test_a_volume_in_use_cannot_be_removed_and_a_missing_one_not_used(make, store) -> None:
    await Volume.create("busy", "unlimited")
    async with make(volumes=["busy:/mnt/busy"]):
        with pytest.raises(Busy):
            store.volumes.remove("busy")
    store.volumes.remove("busy")
    with pytest.raises(NotFound, match="volume create"):
        await make(volumes=["busy:/mnt/busy"]).open()


async def test_a_second_volume_of_a_name_is_refused(make) -> None:
    await Volume.create("once", "unlimited")
    async with make(volumes=["once:/mnt/once"]) as sandbox:
        await sandbox.run("echo whole > /mnt/once/file")
        with pytest.raises(RequestError):
            await Volume.create("once", "unlimited")
        assert (await sandbox.run("cat /mnt/once/file")).stdout == "whole\n"


async def test_a_size_that_cannot_be_held_is_refused(store, driver) -> None:
    if driver == "plain":
        with pytest.raises(Unsupported, match="setup storage"):
            await Volume.create("sized", 2**20)
        assert store.volumes.list() == []
    else:
        await Volume.create("sized", 2**20)
        assert store.volumes.find("sized").limit_bytes == 2**20


COUNT = "echo on; i=0; while :; do i=$((i+1)); echo $i > count.new; mv count.new count; done"


async def test_a_paused_sandbox_stands_still_on_its_disk_and_goes_on(make, freezing) -> None:
    async with make() as sandbox:
        counter = await sandbox.start(COUNT)
        await anext(aiter(counter.stdout))
        await sandbox.pause()
        used = (await usage_cpu(sandbox), await usage_cpu(sandbox))
        assert used[0] == used[1]
        await sandbox.resume()
        first = int((await sandbox.run("cat count || echo 0")).stdout)
        while int((await sandbox.run("cat count || echo 0")).stdout) <= first:
            continue


async def usage_cpu(sandbox: Sandbox) -> float:
    await asyncio.sleep(0.05)
    return sandbox._running().usage().cpu_s


async def test_pause_and_resume_twice_are_the_same_as_once(make, freezing) -> None:
    async with make() as sandbox:
        await sandbox.start("sleep infinity")
        for _ in range(2):
            await sandbox.pause()
        taken = await sandbox.snapshot()
        for _ in range(2):
            await sandbox.resume()
        assert (await sandbox.run("echo on")).stdout == "on\n"
        assert taken.id in {each.id for each in await sandbox.snapshots()}


async def test_a_paused_kept_sandbox_that_is_stopped_keeps_its_files(make, freezing) -> None:
    async with make(keep="asleep") as sandbox:
        await sandbox.run("echo kept > file")
        await sandbox.start("sleep infinity")
        await sandbox.pause()
    async with Sandbox(keep="asleep") as sandbox:
        assert (await sandbox.run("cat file; pgrep sleep")).stdout == "kept\n"


async def test_a_link_put_in_the_way_of_a_volume_is_told_with_the_ways_out(make, store) -> None:
    await Volume.create("cache", "unlimited")
    settings = {"keep": "trap", "profile": "root", "volumes": ["cache:/data/cache"]}
    async with make(**settings) as sandbox:
        await sandbox.run("echo kept > /workspace/file")
        (await sandbox.run("mv /data /old && ln -s /etc /data", user="root")).check()
    with pytest.raises(LaunchFailed, match="fork a snapshot"):
        await Sandbox(keep="trap").open()
    async with opened_workspace("trap") as workspace:
        await workspace.take(Occasion("after"), idle=True)
    async with Sandbox.fork("trap@after") as [fork]:
        assert (await fork.run("cat /workspace/file; readlink /data")).stdout == "kept\n/etc\n"
