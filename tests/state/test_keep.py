"""Kept sandboxes: the disk outlives its process, and belongs to one at a time."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from cloister import (
    Busy,
    CannotEnforce,
    Denied,
    Limits,
    Mount,
    Reason,
    RequestError,
    Sandbox,
    Unsupported,
    Volume,
)
from cloister.ledger import ProcessStarted
from cloister.ledger.reading import read_entries
from cloister.policy import DirectoryRoot, Policy
from cloister.store.place import state_directory
from cloister.verify.ends import has_ended
from cloister.verify.resources import descendants

from .conftest import SYNCED


async def test_what_was_written_is_there_when_it_is_opened_again(make, listing) -> None:
    async with make(keep="task") as sandbox:
        await sandbox.run("mkdir -p d; echo kept > d/file; ln d/file link; chmod 600 d/file")
        await sandbox.run("rm -f never; mkfifo pipe; ln -s d down; touch ~/home /tmp/temporary")
        before = await listing(sandbox, "/workspace", "/home")
        first = sandbox.id
    async with Sandbox(keep="task") as sandbox:
        assert await listing(sandbox, "/workspace", "/home") == before
        assert sandbox.id != first


async def test_one_that_is_opened_again_with_a_policy_is_recorded_on(make, limits) -> None:
    policy = Policy(storage="disk", limits=limits())
    for word in ("first", "second"):
        async with Sandbox(policy, keep="told") as sandbox:
            await sandbox.run(["echo", word])
    entries = list(read_entries(state_directory(), "told"))
    started = [each.payload for each in entries if isinstance(each.payload, ProcessStarted)]
    assert [each.argv for each in started] == [("echo", "first"), ("echo", "second")]


async def test_a_number_of_files_that_nobody_counts_is_refused(make, limits, driver) -> None:
    with pytest.raises(CannotEnforce) as raised:
        await make(keep="counted", limits=limits(inodes=1000)).open()
    assert raised.value.limit == "inodes"
    async with make(keep="counted") as sandbox:
        assert (await sandbox.run(["true"])).ok
    if driver == "btrfs":
        # So few bytes cannot hold more files than that, and bytes are counted.
        async with make(limits=limits(disk="4MiB", inodes=21_000)) as sandbox:
            assert (await sandbox.run(["true"])).ok


async def test_without_a_limit_named_a_disk_has_the_usual_one_where_it_holds(driver) -> None:
    async with Sandbox(keep="usual") as sandbox:
        usual = None if driver == "plain" else 2**30
        assert sandbox.policy.limits.disk == usual
    async with Sandbox(keep="usual", limits=Limits(pids=99)) as sandbox:
        assert sandbox.policy.limits.disk == usual
    asked = Sandbox(keep="asked", limits=Limits(disk="1GiB"))
    if driver == "plain":
        with pytest.raises(Unsupported, match="leave the limit out"):
            await asked.open()
        return
    async with asked as sandbox:
        assert sandbox.policy.limits.disk == 2**30


async def test_a_program_that_fails_on_a_disk_with_room_is_not_said_to_have_filled_it(make) -> None:
    async with make() as sandbox:
        result = await sandbox.run("exit 3")
        assert (result.exit_code, result.reason) == (3, Reason.EXIT)


async def test_its_policy_is_the_one_it_was_made_with(make, limits) -> None:
    tight = limits(memory="256MiB", pids=40, open_files=77)
    async with make(keep="tight", limits=tight, env={"A": "1"}, history="each-run") as sandbox:
        made = sandbox.policy
    for _ in range(2):
        async with Sandbox(keep="tight") as sandbox:
            assert sandbox.policy == made
            assert (await sandbox.run("ulimit -n; echo $A")).stdout == "77\n1\n"
            with pytest.raises(Denied):
                await sandbox.run("id", user="root")


async def test_what_is_said_when_it_is_opened_changes_that_alone(make, limits) -> None:
    async with make(keep="changing", limits=limits(pids=40), env={"A": "1"}):
        pass
    async with Sandbox(keep="changing", limits=limits(pids=50)) as sandbox:
        assert sandbox.policy.limits.pids == 50
        assert sandbox.policy.env == {"A": "1"}
    async with Sandbox(keep="changing") as sandbox:
        assert sandbox.policy.limits.pids == 50


async def test_one_process_at_a_time(make, start_owner) -> None:
    async with make(keep="mine") as sandbox:
        await sandbox.run("echo first > file")
        with pytest.raises(Busy):
            await Sandbox(keep="mine").open()
        owner = await start_owner()
        with pytest.raises(Exception, match="in use"):
            await owner.ask("open", "it", keep="mine")
        assert (await sandbox.run("cat file")).stdout == "first\n"
    await owner.ask("open", "it", keep="mine")
    assert (await owner.ask("run", "it", "cat file"))[1] == "first\n"
    with pytest.raises(Busy) as caught:
        await Sandbox(keep="mine").open()
    assert caught.value.holder == str(owner.pid)
    await owner.close()
    async with Sandbox(keep="mine") as sandbox:
        assert (await sandbox.run("cat file")).stdout == "first\n"


async def test_a_forked_child_of_its_process_does_not_hold_it_for_longer(make) -> None:
    reading, writing = os.pipe()
    async with make(keep="mine"):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
    try:
        async with Sandbox(keep="mine") as sandbox:
            assert (await sandbox.run("echo on")).stdout == "on\n"
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


async def test_it_cannot_be_removed_while_it_runs(make, store) -> None:
    async with make(keep="running"):
        with pytest.raises(Busy):
            store.kept.remove("running")
    store.kept.remove("running")
    assert store.kept.list() == []


async def test_a_killed_process_leaves_it_whole_and_free(start_owner, limits, freezing) -> None:
    settings = {"keep": "survivor", "limits": {"disk": limits().disk or "unlimited"}}
    for turn in range(4):
        owner = await start_owner()
        await owner.ask("open", "it", **settings)
        await owner.ask("run", "it", f"echo {turn} >> file" + SYNCED)
        await owner.ask("start", "it", "echo on; while :; do echo x > busy; mv busy moved; done")
        if turn % 2:
            await owner.ask("snapshot", "it", f"s{turn}")
        await owner.kill()
    async with Sandbox(keep="survivor") as sandbox:
        assert (await sandbox.run("cat file")).stdout == "0\n1\n2\n3\n"
        assert [each.name for each in await sandbox.snapshots()] == ["s1", "s3"]


async def test_nobody_of_a_killed_owner_can_write_once_it_is_open_again(
    start_owner, limits, store
) -> None:
    """Two overlays over one directory are undefined: it is free when all writers are dead."""
    settings = {"keep": "haunted", "limits": {"disk": limits().disk or "unlimited"}}
    for _ in range(5):
        owner = await start_owner()
        await owner.ask("open", "it", **settings)
        for _ in range(20):
            await owner.ask("start", "it", "echo on; while :; do echo x >> ghost; done")
        inside = [pid for pid in descendants(owner.pid) if parent_of(pid) != owner.pid]
        assert len(inside) > 20
        pidfds = [os.pidfd_open(pid) for pid in inside]
        os.kill(owner.pid, signal.SIGKILL)
        lock = lock_as_soon_as_free(store, "haunted")
        alive = [pid for pid, fd in zip(inside, pidfds, strict=True) if not has_ended(fd)]
        lock.release()
        for descriptor in pidfds:
            os.close(descriptor)
        assert not alive
    async with Sandbox(keep="haunted") as sandbox:
        assert (await sandbox.run("ls")).stdout == "ghost\n"


def lock_as_soon_as_free(store, name: str):
    while True:
        with contextlib.suppress(Busy):
            return store.kept.lock(name)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_another_root_is_refused(make, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    async with make(keep="rooted") as sandbox:
        await sandbox.run("echo mine > file")
    with pytest.raises(RequestError, match="root"):
        await Sandbox(keep="rooted", root=DirectoryRoot(tmp_path)).open()
    async with Sandbox(keep="rooted") as sandbox:
        assert (await sandbox.run("cat file")).stdout == "mine\n"


async def test_volumes_given_when_it_is_opened_again_are_those_it_gets(make, store) -> None:
    for name in ("first", "second"):
        await Volume.create(name, "unlimited")
        async with Sandbox(volumes=[f"{name}:/mnt/it"]) as sandbox:
            await sandbox.run(f"printf {name} > /mnt/it/who")
    async with make(keep="moving", volumes=["first:/mnt/a"]) as sandbox:
        assert (await sandbox.run("cat /mnt/a/who")).stdout == "first"
    async with Sandbox(keep="moving", volumes=["second:/mnt/b"]) as sandbox:
        assert (await sandbox.run("cat /mnt/b/who; ls /mnt/a")).stdout == "second"
        with pytest.raises(Busy):
            store.volumes.remove("second")
        store.volumes.remove("first")
    async with Sandbox(keep="moving", volumes=[]) as sandbox:
        # The places are there, as empty directories of its own disk.
        assert (await sandbox.run("ls /mnt/a /mnt/b | grep who")).stdout == ""
    store.volumes.remove("second")


async def test_a_limit_given_when_it_is_opened_again_holds(make, driver: str) -> None:
    async with make(keep="bounded", limits=Limits(disk="unlimited")):
        pass
    tight = Limits(disk="64MiB")
    if driver == "plain":
        with pytest.raises(RequestError, match="setup storage"):
            await Sandbox(keep="bounded", limits=tight).open()
        return
    async with Sandbox(keep="bounded", limits=tight) as sandbox:
        result = await sandbox.run("head -c 200M /dev/zero > big")
        assert not result.ok and result.reason == "disk"
    async with Sandbox(keep="bounded", limits=Limits(disk="unlimited")) as sandbox:
        assert (await sandbox.run("head -c 200M /dev/zero > big")).ok


async def test_memory_cannot_be_kept(make) -> None:
    with pytest.raises(RequestError):
        await Sandbox(keep="memory", storage="memory").open()
    for wrong in ("", "../x", "A", "a b", "x" * 64, "-x", ".hidden"):
        with pytest.raises(RequestError):
            Sandbox(keep=wrong)


async def test_a_start_that_fails_keeps_nothing_and_frees_the_name(make, store) -> None:
    broken = make(keep="broken", mounts=[Mount("/nowhere/at/all", "/mnt/x", "read")])
    with pytest.raises(Exception, match="nowhere"):
        await broken.open()
    assert store.kept.list() == []
    async with make(keep="broken") as sandbox:
        await sandbox.run("echo mine > file")
    with pytest.raises(Exception, match="nowhere"):
        await Sandbox(keep="broken", mounts=broken.policy.mounts).open()
    async with Sandbox(keep="broken") as sandbox:
        assert (await sandbox.run("cat file")).stdout == "mine\n"


async def test_a_copy_in_that_fails_keeps_nothing(make, store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("copied")
    mounts = [Mount(tmp_path, "/workspace/in"), Mount("/nowhere/at/all", "/workspace/not")]
    with pytest.raises(Exception, match="nowhere"):
        await make(keep="half", mounts=mounts).open()
    assert store.kept.list() == []


async def test_a_whole_policy_given_replaces_the_stored_one(make, limits) -> None:
    async with make(keep="replaced", env={"A": "1"}) as sandbox:
        await sandbox.run("echo here > file")
    policy = Policy(storage="disk", limits=limits(pids=33), env={"B": "2"})
    async with Sandbox(policy, keep="replaced") as sandbox:
        assert (await sandbox.run("cat file; echo $A$B")).stdout == "here\n2\n"
        assert sandbox.policy.limits.pids == 33


async def test_a_kept_fork_is_a_kept_sandbox_of_its_own(make) -> None:
    async with make(keep="parent") as sandbox:
        await sandbox.run("echo start > file")
        await sandbox.snapshot("start")
        async with Sandbox.fork("parent@start", keep="child") as [child]:
            await child.run("echo child >> file")
        await sandbox.run("echo parent >> file")
    async with Sandbox(keep="child") as child, Sandbox(keep="parent") as sandbox:
        assert (await child.run("cat file")).stdout == "start\nchild\n"
        assert (await sandbox.run("cat file")).stdout == "start\nparent\n"
