"""Forks: the same start, then strangers to each other; with the walls of where they came from."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

from cloister import Denied, Limits, Mount, NotFound, RequestError, Sandbox, Volume
from cloister.policy import DirectoryRoot, Policy

IDENTITY = "cat /proc/sys/kernel/random/uuid; head -c 16 /dev/urandom | od -An -tx1; echo $CLOISTER"


async def test_forks_never_see_each_others_writes(make) -> None:
    async with make() as sandbox:
        await sandbox.run("mkdir shared; echo start > shared/file; echo start > gone")
        taken = await sandbox.snapshot()
        async with Sandbox.fork(taken, count=4) as forks:
            for number, fork in enumerate(forks):
                await fork.run(f"echo {number} > shared/file; echo {number} > own{number}; rm gone")
            await sandbox.run("echo parent > shared/file; echo parent > own")
            for number, fork in enumerate(forks):
                found = await fork.run("cat shared/file; ls")
                assert found.stdout == f"{number}\nown{number}\nshared\n"
            assert (
                await sandbox.run("cat shared/file; ls")
            ).stdout == "parent\ngone\nown\nshared\n"
        async with Sandbox.fork(taken) as [late]:
            assert (
                await late.run("cat shared/file gone; ls")
            ).stdout == "start\nstart\ngone\nshared\n"


async def test_forks_of_forks_go_their_own_ways(make) -> None:
    async with make() as sandbox:
        await sandbox.run("echo 0 > generation")
        taken = await sandbox.snapshot()
        running = [sandbox]
        try:
            for generation in range(1, 6):
                [fork] = await Sandbox.fork(taken)
                running.append(fork)
                await fork.run(f"echo {generation} > generation; touch by{generation}")
                taken = await fork.snapshot()
            for generation, each in enumerate(running):
                found = await each.run("cat generation; ls by* 2> /dev/null")
                expected = [str(generation), *(f"by{n}" for n in range(1, generation + 1))]
                assert found.stdout.split() == expected
        finally:
            await asyncio.gather(*(fork.stop() for fork in running[1:]))


async def test_a_fork_is_somebody_else(make) -> None:
    async with make() as sandbox:
        taken = await sandbox.snapshot()
        async with Sandbox.fork(taken, count=3) as forks:
            everyone = [sandbox, *forks]
            told = [(await each.run(IDENTITY)).stdout.splitlines() for each in everyone]
            for column in zip(*told, strict=True):
                assert len(set(column)) == len(everyone)
            assert len({each.id for each in everyone}) == len(everyone)
            sockets = [(await each.run("cat /proc/net/unix | wc -l")).stdout for each in forks]
            assert len(set(sockets)) == 1


async def test_no_program_and_no_socket_is_carried_over(make, freezing) -> None:
    listen = "import socket; s = socket.create_server(('127.0.0.1', 4000)); print('up', flush=True)"
    async with make() as sandbox:
        server = await sandbox.start(["/usr/bin/python3", "-I", "-c", f"{listen}; s.accept()"])
        await anext(aiter(server.stdout))
        async with Sandbox.fork(await sandbox.snapshot()) as [fork]:
            # The same port is free, and nobody answers on it.
            again = f"{listen}; s.close()"
            assert (await fork.run(["/usr/bin/python3", "-I", "-c", again])).stdout == "up\n"
        reader, writer = await sandbox.dial(4000)
        writer.close()
        assert await reader.read() == b""


async def test_grants_are_not_inherited_unless_asked_for(make, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "file").write_text("the host's")
    await Volume.create("shared", "unlimited")
    mounts = [Mount(tmp_path, "/mnt/host", "read")]
    async with make(mounts=mounts, volumes=["shared:/mnt/volume"]) as sandbox:
        assert (await sandbox.run("cat /mnt/host/file")).stdout == "the host's"
        taken = await sandbox.snapshot()
    async with Sandbox.fork(taken) as [fork]:
        assert fork.policy.mounts == () and fork.policy.volumes == ()
        assert not (await fork.run("ls -d /mnt/host/file /mnt/volume/.")).ok
    async with Sandbox.fork(taken, grants=True) as [fork]:
        assert (await fork.run("cat /mnt/host/file; ls -d /mnt/volume")).ok


async def test_a_forks_walls_are_those_of_the_sandbox_it_came_from(make, limits) -> None:
    tight = limits(memory="256MiB", pids=20, open_files=64, wall="7s")
    async with make(limits=tight, env={"GIVEN": "yes"}) as sandbox:
        taken = await sandbox.snapshot()
        assert (await sandbox.run("ulimit -n")).stdout == "64\n"
    async with Sandbox.fork(taken, count=2) as forks:
        for fork in forks:
            assert fork.policy.limits == tight
            assert (await fork.run("ulimit -n; echo $GIVEN")).stdout == "64\nyes\n"
            # Without its streams: what was started must not be waited for.
            line = "for i in $(seq 40); do sleep 5 <&- >&- 2>&- & done; wait"
            bomb = await fork.run(line, timeout=20)
            assert not bomb.ok
            with pytest.raises(Denied):
                await fork.run("id", user="root")
    # What a fork is given instead is said in the call, and nothing else changes with it.
    async with Sandbox.fork(taken, limits=limits(pids=30)) as [fork]:
        assert fork.policy.limits == limits(pids=30)
        assert fork.policy.replace(limits=tight) == sandbox.policy
        with pytest.raises(Denied):
            await fork.run("id", user="root")


async def test_a_fork_of_a_root_profile_stays_one_and_no_other_becomes_one(make) -> None:
    async with make(profile="root") as sandbox:
        taken = await sandbox.snapshot()
        async with Sandbox.fork(taken) as [fork]:
            assert fork.policy.profile == sandbox.policy.profile
            assert (await fork.run("id -u", user="root")).stdout == "0\n"


async def test_a_fork_of_a_named_snapshot_outlives_the_sandbox(make) -> None:
    async with make() as sandbox:
        await sandbox.run("echo kept > file")
        await sandbox.snapshot("last")
        name = sandbox.id
    async with Sandbox.fork(f"{name}@last") as [fork]:
        assert (await fork.run("cat file")).stdout == "kept\n"


async def test_what_cannot_be_forked_is_said_and_leaves_nothing(make, store) -> None:
    async with make() as sandbox:
        taken = await sandbox.snapshot("only")
        for wrong in (0, -1, True, 1.5, "3", 10_001):
            with pytest.raises(RequestError):
                await Sandbox.fork(taken, count=wrong)
        for nobody in ("nobody@home", "snap-aaaaaaaaaaaaaaaa", f"{sandbox.id}@other"):
            with pytest.raises(NotFound):
                await Sandbox.fork(nobody)
        with pytest.raises(RequestError):
            await Sandbox.fork(taken, storage="memory", limits=Limits())
        with pytest.raises(TypeError):
            await Sandbox.fork(taken, colour="blue")
        with pytest.raises(RequestError, match="one name"):
            await Sandbox.fork(taken, count=3, keep="all")
        assert store.kept.list() == []


async def test_a_snapshot_that_was_removed_cannot_be_forked(make, store) -> None:
    async with make() as sandbox:
        taken = await sandbox.snapshot("gone")
        store.snapshots.remove(taken)
        with pytest.raises(NotFound):
            await Sandbox.fork(taken)
        # The sandbox itself stands on it and goes on.
        assert (await sandbox.run("echo on > file; cat file")).stdout == "on\n"


async def test_forks_keep_what_they_stand_on_when_all_snapshots_are_removed(make, store) -> None:
    async with make() as sandbox:
        await sandbox.run("echo base > file")
        taken = await sandbox.snapshot("base")
        async with Sandbox.fork(taken, count=2) as forks:
            await sandbox.stop()
            store.snapshots.remove(taken)
            store.collect()
            for fork in forks:
                assert (await fork.run("cat file")).stdout == "base\n"


async def test_a_snapshots_policy_is_checked_like_any_other(make, store) -> None:
    """Whoever can write to the records is us; still nothing but a whole policy is believed."""
    async with make() as sandbox:
        taken = await sandbox.snapshot("one")
    policy = json.loads(taken.policy)
    for wrong in ({**policy, "profile": "god"}, {**policy, "extra": 1}):
        with store._records.writing(durable=False) as connection:
            connection.execute("UPDATE snapshots SET policy = ?", (json.dumps(wrong),))
        with pytest.raises(RequestError):
            await Sandbox.fork(f"{taken.sandbox}@one")


async def test_what_a_caller_made_of_a_snapshot_is_not_believed(make, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    async with make(root=DirectoryRoot(tmp_path)) as other, make(profile="root") as sandbox:
        foreign, own = await other.snapshot(), await sandbox.snapshot()
        forged = dataclasses.replace(foreign, policy=own.policy, image=own.image)
        with pytest.raises(RequestError, match="root"):
            await sandbox.rewind(forged)
        async with Sandbox.fork(forged) as [fork]:
            assert fork.policy.root == other.policy.root
            assert fork.policy.profile == other.policy.profile


async def test_a_policy_given_with_a_fork_is_refused_in_words(make) -> None:
    async with make() as sandbox:
        taken = await sandbox.snapshot()
        with pytest.raises((RequestError, TypeError)):
            await Sandbox.fork(taken, policy=Policy())
