"""Snapshots: exactly what was there, whatever it was, whoever was writing."""

from __future__ import annotations

import asyncio
import json

import pytest

from cloister import AlreadyExists, GuestGone, NotFound, RequestError, Sandbox, Unsupported

from .conftest import WALL

# Everything a directory can hold that a copy may get wrong.
ODD_TREE = r"""
import os, socket, sys
os.umask(0)
os.chdir(sys.argv[1])
open("plain", "w").write("plain\n")
os.link("plain", "second name")
os.mkdir("deep"); os.link("plain", "deep/third name")
with open("sparse", "wb") as file:
    file.truncate(2**26); file.seek(2**25); file.write(b"middle")
for name in (b"new\nline", b"\xff\xfe", b"-rf", b" ", b"..foo", b"*", b"\x01", b"n" * 255):
    open(name, "wb").write(name)
os.setxattr("plain", "user.colour", b"\x00blue"); os.setxattr("deep", "user.empty", b"")
listener = socket.socket(socket.AF_UNIX); listener.bind("socket")
os.mkfifo("pipe", 0o620)
os.symlink("/etc/shadow", "absolute"); os.symlink(b"\xff" * 200, "odd"); os.symlink("gone", "no")
os.mkdir("shut"); open("shut/inside", "w").write("kept in\n"); os.chmod("shut", 0o000)
os.mkdir("unreadable"); open("unreadable/x", "w").close(); os.chmod("unreadable", 0o311)
open("secret", "w").write("x"); os.chmod("secret", 0o000)
open("tool", "w").close(); os.chmod("tool", 0o755)
os.mkdir("sticky"); os.chmod("sticky", 0o1777)
os.utime("plain", ns=(1, 1_234_567_890_123_456_789))
os.utime("deep", ns=(1, 987_654_321_000_000_001))
"""
OPEN_SHUT = "chmod 755 shut unreadable; chmod 644 secret"
SHUT = "chmod 000 shut secret; chmod 311 unreadable"


async def make_odd_tree(sandbox: Sandbox, top: str = "/workspace", **who: str) -> None:
    (await sandbox.run(["/usr/bin/python3", "-I", "-c", ODD_TREE, top], **who)).check()


async def test_a_snapshot_holds_what_was_there_and_nothing_later(make) -> None:
    async with make() as sandbox:
        await sandbox.run("echo before > file; echo gone > removed")
        taken = await sandbox.snapshot("before")
        await sandbox.run("echo after > file; rm removed; echo new > added")
        assert (await sandbox.run("cat *")).stdout == "new\nafter\n"
        async with Sandbox.fork(taken) as [fork]:
            assert (await fork.run("cat *")).stdout == "before\ngone\n"
        assert (await sandbox.run("cat *")).stdout == "new\nafter\n"


async def test_what_was_removed_stays_removed_in_every_later_snapshot(make, listing) -> None:
    async with make() as sandbox:
        await sandbox.run(
            "mkdir -p a/b/c d; echo 1 > a/b/c/x; echo 1 > a/y; echo 1 > d/z; echo 1 > f"
        )
        await sandbox.snapshot("whole")
        # A whiteout, an opaque directory, a directory in place of a file and a file in its place.
        await sandbox.run(
            "rm -r a/b; mkdir a/b; echo 2 > a/b/new; rm -r d; echo 2 > d; rm f; mkdir f"
        )
        before = await listing(sandbox)
        holed = await sandbox.snapshot("holed")
        async with Sandbox.fork(holed) as [fork]:
            assert await listing(fork) == before
            await fork.run("rm -r a; mkdir a; echo 3 > f/deeper")
            again = await fork.snapshot("again")
            async with Sandbox.fork(again) as [second]:
                assert (await second.run("find . | sort")).stdout.split() == [
                    *(".", "./a", "./d", "./f", "./f/deeper"),
                ]
        await sandbox.rewind("whole")
        assert (await sandbox.run("cat a/b/c/x a/y d/z f")).stdout == "1\n" * 4


async def test_every_kind_of_entry_survives_a_snapshot_of_an_idle_sandbox(make, listing) -> None:
    async with make() as sandbox:
        await make_odd_tree(sandbox)
        await sandbox.run(OPEN_SHUT)
        before = await listing(sandbox)
        await sandbox.run(SHUT)
        taken = await sandbox.snapshot()
        # Of a machine the host does not know whether anything runs: its disk is copied or shared.
        if WALL != "microvm":
            assert taken.method in ("snapshot", "sealed")
        await require_same(taken, before, listing)


async def test_every_kind_of_entry_survives_a_snapshot_of_a_running_one(
    make, listing, freezing
) -> None:
    async with make() as sandbox:
        await make_odd_tree(sandbox)
        await sandbox.run(OPEN_SHUT)
        before = await listing(sandbox)
        await sandbox.run(SHUT)
        await sandbox.start("sleep infinity")
        taken = await sandbox.snapshot()
        assert taken.method in ("snapshot", "reflinked", "copied")
        await require_same(taken, before, listing)


async def require_same(taken, before, listing) -> None:
    """The times of what `chmod` touched are its own; all else is as it was."""
    async with Sandbox.fork(taken, 2) as forks:
        for fork in forks:
            modes = (await fork.run("stat -c %a shut unreadable secret")).stdout
            assert modes == "0\n311\n0\n"
            assert (await fork.run("du -k sparse | cut -f 1")).stdout.strip() in ("4", "8", "64")
            await fork.run(OPEN_SHUT)
            assert await listing(fork) == before
            inodes = (await fork.run("stat -c %i plain 'second name' 'deep/third name'")).stdout
            assert len(set(inodes.split())) == 1


async def test_hard_links_are_one_file_after_a_snapshot_too(make, driver: str) -> None:
    async with make() as sandbox:
        await sandbox.run("echo old > one; ln one two")
        await sandbox.snapshot()
        await sandbox.run("echo new > one")
        found = await sandbox.run("cat two; ln one three; echo newest > one; cat three")
        # On plain directories both names lie in a sealed layer, and overlayfs takes up the one
        # that is written to: docs/state.md says so. Links made since then are one file everywhere.
        assert found.stdout == {"btrfs": "new", "plain": "old"}[driver] + "\nnewest\n"


async def test_owners_inside_survive(make, listing, several_ids) -> None:
    async with make(profile="root") as sandbox:
        await sandbox.run(
            "for id in 0 1 1000 4242 65534; do touch $id; chown $id:$id $id; done; "
            "mkdir set; chmod 2770 set; cp /bin/true setid; chmod 6755 setid",
            user="root",
        )
        before = await listing(sandbox, user="root")
        taken = await sandbox.snapshot()
        await sandbox.start("sleep infinity")
        async with Sandbox.fork(taken) as [fork]:
            assert await listing(fork, user="root") == before


async def test_a_root_profiles_changes_to_the_programs_survive(make, owned_programs) -> None:
    async with make(profile="root") as sandbox:
        change = "echo '#!/bin/sh' > /usr/bin/new; chmod 755 /usr/bin/new; rm /usr/bin/env; "
        change += "echo mine > /etc/issue; rm -r /etc/apt; mkdir /etc/apt; echo x > /root/x"
        (await sandbox.run(change, user="root")).check()
        taken = await sandbox.snapshot("programs")
        undo = "rm /usr/bin/new; cp /bin/true /usr/bin/env; echo theirs > /etc/issue"
        (await sandbox.run(undo, user="root")).check()
        look = "cat /etc/issue; ls /etc/apt | wc -l; ls /usr/bin/env; ls /usr/bin/new; cat /root/x"
        async with Sandbox.fork(taken) as [fork]:
            found = await fork.run(look, user="root")
            assert found.stdout == "mine\n0\n/usr/bin/new\nx\n", found
        await sandbox.rewind("programs")
        assert (await sandbox.run(look, user="root")).stdout == "mine\n0\n/usr/bin/new\nx\n"


HOLDING = r"""
import mmap, os, sys
log = open("log", "w", buffering=1)
mapped = open("mapped", "wb+"); mapped.truncate(4096)
page = mmap.mmap(mapped.fileno(), 4096)
gone = open("gone", "wb+", buffering=0); os.unlink("gone"); gone.write(b"still here")
for number, _ in enumerate(sys.stdin):
    log.write(f"{number}\n")
    page[:2] = b"%02d" % number
    gone.seek(0)
    print(number, gone.read().decode(), flush=True)
"""


async def test_open_files_of_a_running_program_go_on(make, freezing) -> None:
    async with make() as sandbox:
        program = await sandbox.start(["/usr/bin/python3", "-I", "-c", HOLDING], stdin=True)
        said = aiter(program.stdout)
        snapshots = []
        for number in range(4):
            await program.stdin.write(b"\n")
            assert (await anext(said)).decode() == f"{number} still here\n"
            snapshots.append(await sandbox.snapshot())
        for number, taken in enumerate(snapshots):
            async with Sandbox.fork(taken) as [fork]:
                found = await fork.run("tail -n 1 log; head -c 2 mapped; ls")
                assert found.stdout == f"{number}\n{number:02}log\nmapped\n"
        assert (await sandbox.run("wc -l < log; head -c 2 mapped")).stdout == "4\n03"


# Appends numbered records, each with its own checksum, in one write; after each, a file with the
# same number takes the place of the one before. So at any one moment: every record is whole, the
# numbers have no gap, and the file's number is that of the last record or the one before it.
NEVER_STOPS = r"""
import hashlib, os
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
padding = "x" * 300
number = 0
while True:
    number += 1
    body = f"{number} {padding}"
    record = f"{body} {hashlib.sha256(body.encode()).hexdigest()}\n".encode()
    os.write(log, record)
    with open(f"next{number % 2}", "wb") as file:
        file.write(record)
    os.rename(f"next{number % 2}", "current")
    if number == 1:
        print("on", flush=True)
    if number % 50 == 0:
        os.mkdir(f"batch{number}"); os.rename(f"batch{number}", f"done{number}")
"""
CHECK = r"""
import hashlib, os

def number_of(record):
    body, _, digest = record.rstrip("\n").rpartition(" ")
    assert hashlib.sha256(body.encode()).hexdigest() == digest, record
    return int(body.split()[0])

log = open("log").read()
assert log.endswith("\n"), "the last record is torn"
numbers = [number_of(record) for record in log.splitlines()]
assert numbers == list(range(1, len(numbers) + 1)), "a record is missing"
current = number_of(open("current").read()) if os.path.exists("current") else 0
assert len(numbers) - 1 <= current <= len(numbers), (current, len(numbers))
done = sum(name.startswith("done") for name in os.listdir())
batches = sum(name.startswith("batch") for name in os.listdir())
assert current // 50 - 1 <= done <= current // 50 and batches <= 1, (current, done, batches)
print(len(numbers))
"""


@pytest.mark.parametrize("writers", [1, 4])
async def test_a_snapshot_under_a_writer_that_never_stops_is_of_one_moment(
    make, freezing, writers: int
) -> None:
    async with make() as sandbox:
        places = [f"/workspace/{number}" for number in range(writers)]
        for place in places:
            await sandbox.run(["mkdir", place])
            writer = await sandbox.start(["/usr/bin/python3", "-I", "-c", NEVER_STOPS], cwd=place)
            await anext(aiter(writer.stdout))
        snapshots = [await sandbox.snapshot() for _ in range(6)]
        written = [0] * writers
        for taken in snapshots:
            async with Sandbox.fork(taken) as [fork]:
                for number, place in enumerate(places):
                    found = await fork.run(["/usr/bin/python3", "-I", "-c", CHECK], cwd=place)
                    assert found.ok, found.stderr
                    assert int(found.stdout) >= written[number]
                    written[number] = int(found.stdout)
        assert all(written)


async def test_twenty_snapshots_asked_for_at_once_are_all_taken(make, freezing) -> None:
    async with make() as sandbox:
        writer = await sandbox.start(["/usr/bin/python3", "-I", "-c", NEVER_STOPS])
        await anext(aiter(writer.stdout))
        taken = await asyncio.gather(*(sandbox.snapshot(f"s{n}") for n in range(20)))
        assert len({each.id for each in taken}) == 20
        async with Sandbox.fork(taken[19]) as [fork]:
            found = await fork.run(["/usr/bin/python3", "-I", "-c", CHECK])
            assert found.ok, found.stderr
        assert (await sandbox.run("echo alive")).stdout == "alive\n"


async def test_a_command_that_comes_during_a_snapshot_waits_and_runs(make, freezing) -> None:
    async with make() as sandbox:
        for number in range(5):
            work = (sandbox.run(f"echo {number} > {n}") for n in range(4))
            results = await asyncio.gather(sandbox.snapshot(), *work, sandbox.snapshot())
            assert all(result.ok for result in results[1:-1])
        assert (await sandbox.run("cat 0 1 2 3")).stdout == "4\n" * 4
        taken = (await sandbox.snapshots())[-1]
        async with Sandbox.fork(taken) as [fork]:
            assert set((await fork.run("cat 0 1 2 3")).stdout.split()) <= {"3", "4"}


async def test_file_operations_during_snapshots_lose_nothing(make, freezing) -> None:
    async with make() as sandbox:

        async def write(number: int) -> None:
            await sandbox.files.write(f"/workspace/{number}", str(number) * 10_000)

        await asyncio.gather(*(write(n) if n % 4 else sandbox.snapshot() for n in range(40)))
        for number in range(40):
            if number % 4:
                found = await sandbox.files.read_text(f"/workspace/{number}")
                assert found == str(number) * 10_000


async def test_a_paused_sandbox_is_taken_as_it_stands_and_stays_paused(make, freezing) -> None:
    async with make() as sandbox:
        writer = await sandbox.start(["/usr/bin/python3", "-I", "-c", NEVER_STOPS])
        await anext(aiter(writer.stdout))
        await sandbox.pause()
        one, two = await sandbox.snapshot(), await sandbox.snapshot()
        found = []
        for taken in (one, two):
            async with Sandbox.fork(taken) as [fork]:
                found.append((await fork.run(["/usr/bin/python3", "-I", "-c", CHECK])).stdout)
        assert found[0] == found[1] != ""
        await sandbox.resume()
        async with Sandbox.fork(await sandbox.snapshot()) as [fork]:
            later = await fork.run(["/usr/bin/python3", "-I", "-c", CHECK])
            assert int(later.stdout) >= int(found[0])


async def test_a_caller_who_is_cancelled_leaves_a_sandbox_that_works(make) -> None:
    async with make() as sandbox:
        await sandbox.run("echo base > file")
        await sandbox.snapshot("base")
        for number in range(24):
            work = sandbox.rewind("base") if number % 2 else sandbox.snapshot()
            task = asyncio.create_task(work)
            await asyncio.sleep(number * 0.0006)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            found = await sandbox.run(f"cat file; echo {number} > other; cat other")
            assert found.stdout == f"base\n{number}\n"
        taken = await sandbox.snapshot()
        async with Sandbox.fork(taken) as [fork]:
            assert (await fork.run("cat file other")).stdout == "base\n23\n"


async def test_a_stop_during_a_snapshot_or_a_rewind_ends_it(make) -> None:
    for number in range(12):
        async with make() as sandbox:
            await sandbox.snapshot("base")
            work = sandbox.rewind("base") if number % 2 else sandbox.snapshot("other")
            task = asyncio.create_task(work)
            await asyncio.sleep(number * 0.0008)
            await sandbox.stop()
            await asyncio.gather(task, return_exceptions=True)
            assert not sandbox.is_running
            with pytest.raises(GuestGone):
                await sandbox.run("true")


async def test_a_chain_of_snapshots_longer_than_any_limit_of_layers(make, listing) -> None:
    async with make() as sandbox:
        await make_odd_tree(sandbox)
        await sandbox.run(OPEN_SHUT)
        for number in range(95):
            await sandbox.run(
                f"echo {number} > last; echo {number} > f{number}; rm -f f{number - 3}; "
                f"rm -rf d{number % 7}; mkdir d{number % 7}; echo {number} > d{number % 7}/only"
            )
            taken = await sandbox.snapshot(f"n{number}")
        before = await listing(sandbox)
        async with Sandbox.fork(taken) as [fork]:
            assert await listing(fork) == before
        await sandbox.rewind("n20")
        assert (await sandbox.run("cat last; ls -d f*")).stdout == "20\nf18\nf19\nf20\n"
        found = (await sandbox.run("cat d0/* d1/* d2/* d3/* d4/* d5/* d6/*")).stdout.split()
        assert found == ["14", "15", "16", "17", "18", "19", "20"]


async def test_a_name_is_used_once_and_said_when_it_is_wrong(make) -> None:
    async with make() as sandbox:
        await sandbox.snapshot("one")
        with pytest.raises(AlreadyExists):
            await sandbox.snapshot("one")
        for wrong in ("", "../../etc", "a/b", "7", "snap-x", "x" * 64, "new\nline", "Ä"):
            with pytest.raises(RequestError):
                await sandbox.snapshot(wrong)
        with pytest.raises(NotFound):
            await sandbox.rewind("two")
        # None of it has stopped the sandbox.
        assert (await sandbox.run("echo well")).stdout == "well\n"
        assert [each.name for each in await sandbox.snapshots()] == ["one"]


async def test_a_sandbox_in_memory_says_how_to_get_snapshots(state) -> None:
    async with Sandbox() as sandbox:
        for attempt in (sandbox.snapshot(), sandbox.rewind("x"), sandbox.snapshots()):
            with pytest.raises(Unsupported, match="storage"):
                await attempt
        with pytest.raises(Unsupported, match="storage"):
            await sandbox.diff()


async def test_the_tree_of_snapshots_tells_who_came_from_whom(make, store) -> None:
    async with make() as sandbox:
        one = await sandbox.snapshot("one")
        two = await sandbox.snapshot("two")
        await sandbox.rewind("one")
        three = await sandbox.snapshot("three")
        parents = {each.name: each.parent for each in await sandbox.snapshots() if each.name}
        assert parents == {"one": None, "two": one.id, "three": one.id}
        [root] = store.snapshots.tree(sandbox.id)
        assert root.snapshot.id == one.id
        assert {branch.snapshot.id for branch in root.children} == {two.id, three.id}
        assert json.loads(three.policy) == json.loads(one.policy)
