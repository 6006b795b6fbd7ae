"""Going back: to a name or a step, and nothing is lost by looking back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cloister import Exhausted, NotFound, RequestError, Sandbox
from cloister.policy import DirectoryRoot


async def test_rewind_brings_back_what_was_there_and_nothing_else(make, listing) -> None:
    async with make() as sandbox:
        await sandbox.run("mkdir -p d/e; echo 1 > d/e/f; ln -s f d/e/l; chmod 640 d/e/f")
        before = await listing(sandbox)
        await sandbox.snapshot("good")
        await sandbox.run("rm -r d; echo bad > bad; mkdir -p d/x")
        await sandbox.rewind("good")
        assert await listing(sandbox) == before
        await sandbox.run("echo 2 > d/e/f")
        await sandbox.rewind("good")
        assert await listing(sandbox) == before


async def test_programs_end_and_the_sandbox_stays_the_same_one(make, freezing) -> None:
    async with make() as sandbox:
        id = sandbox.id
        await sandbox.snapshot("start")
        await sandbox.start("sleep infinity")
        waiting = asyncio.create_task(sandbox.run("sleep infinity", timeout="unlimited"))
        await sandbox.run("echo later > file")
        await sandbox.rewind("start")
        [outcome] = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(outcome, Exception)
        assert sandbox.id == id
        assert (await sandbox.run("ls; pgrep sleep; echo $CLOISTER")).stdout == f"{id}\n"


async def test_the_branch_that_was_left_is_there_until_gc(make, store) -> None:
    async with make(keep="branching") as sandbox:
        await sandbox.run("echo one > file")
        await sandbox.snapshot("one")
        await sandbox.run("echo two > file")
        await sandbox.rewind("one")
        left = (await sandbox.snapshots())[-1]
        assert left.name is None
        async with Sandbox.fork(left) as [fork]:
            assert (await fork.run("cat file")).stdout == "two\n"
        await sandbox.run("echo three > file")
        await sandbox.rewind(left)
        assert (await sandbox.run("cat file")).stdout == "two\n"
        await sandbox.rewind("one")
        store.collect()
        with pytest.raises(NotFound):
            await sandbox.rewind(left)
        assert (await sandbox.run("cat file")).stdout == "one\n"


async def test_history_makes_a_step_of_every_command(make) -> None:
    async with make(history="each-run") as sandbox:
        for number in range(1, 6):
            await sandbox.run(f"echo {number} >> file")
        await sandbox.run(["false"])
        steps = [(each.step, each.command) for each in await sandbox.snapshots()]
        assert steps == [*((n, f"echo {n} >> file") for n in range(1, 6)), (6, "false")]
        for number in (3, 5, 1):
            await sandbox.rewind(number)
            # Looking is a command too, and so another step: it is the last that counts.
            found = await sandbox.run("cat file")
            assert found.stdout.split() == [str(n) for n in range(1, number + 1)]
        with pytest.raises(NotFound):
            await sandbox.rewind(99)
        numbers = [each.step for each in await sandbox.snapshots() if each.step]
        assert len(numbers) == len(set(numbers))


async def test_history_goes_on_counting_when_a_kept_sandbox_is_opened_again(make) -> None:
    async with make(keep="steps", history="each-run") as sandbox:
        await sandbox.run("echo 1 > file")
        await sandbox.run("echo 2 > file")
    async with Sandbox(keep="steps") as sandbox:
        await sandbox.run("echo 3 > file")
        assert [each.step for each in await sandbox.snapshots()] == [1, 2, 3]
        await sandbox.rewind(1)
        assert (await sandbox.files.read_text("/workspace/file")) == "1\n"


async def test_without_history_no_command_makes_a_snapshot(make) -> None:
    async with make() as sandbox:
        await sandbox.run("true")
        assert await sandbox.snapshots() == ()


async def test_commands_with_history_at_once_each_end_in_a_step(make, freezing) -> None:
    async with make(history="each-run") as sandbox:
        await asyncio.gather(*(sandbox.run(f"echo {n} > f{n}") for n in range(8)))
        steps = [each.step for each in await sandbox.snapshots()]
        assert sorted(steps) == list(range(1, 9))
        await sandbox.rewind(8)
        assert (await sandbox.run("cat f*")).stdout.split() == [str(n) for n in range(8)]


async def test_a_rewind_while_commands_come_ends_or_runs_each(make) -> None:
    async with make() as sandbox:
        await sandbox.run("echo base > base")
        await sandbox.snapshot("base")
        for _ in range(5):
            work = [asyncio.create_task(sandbox.run(f"echo {n} > f{n}")) for n in range(4)]
            await sandbox.rewind("base")
            outcomes = await asyncio.gather(*work, return_exceptions=True)
            assert all(isinstance(each, Exception) or each.ok for each in outcomes)
        await sandbox.rewind("base")
        assert (await sandbox.run("ls")).stdout == "base\n"


async def test_a_rewind_lets_go_of_a_pause(make, freezing) -> None:
    async with make() as sandbox:
        await sandbox.snapshot("start")
        await sandbox.start("sleep infinity")
        await sandbox.pause()
        await sandbox.rewind("start")
        assert (await sandbox.run("echo moving", timeout=20)).stdout == "moving\n"
        assert (await sandbox.snapshot()).method


async def test_a_snapshot_of_another_root_is_refused(make, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    async with make(root=DirectoryRoot(tmp_path)) as other:
        foreign = await other.snapshot("foreign")
        async with make() as sandbox:
            await sandbox.run("echo mine > file")
            for name in (foreign, foreign.id, f"{other.id}@foreign"):
                with pytest.raises(RequestError, match="root"):
                    await sandbox.rewind(name)
            assert (await sandbox.run("cat file")).stdout == "mine\n"


async def test_a_rewind_that_fails_leaves_the_sandbox_as_it_was(make) -> None:
    async with make() as sandbox:
        await sandbox.run("echo here > file")
        for wrong in ("nothing", 7, "snap-aaaaaaaaaaaaaaaa", "other@name", "", "@", True):
            with pytest.raises(RequestError):
                await sandbox.rewind(wrong)
        assert (await sandbox.run("cat file")).stdout == "here\n"


async def test_a_kept_sandbox_is_rewound_for_good(make) -> None:
    async with make(keep="back") as sandbox:
        await sandbox.run("echo one > file")
        await sandbox.snapshot("one")
        await sandbox.run("echo two > file")
        await sandbox.rewind("one")
        await sandbox.run("echo after >> file")
    async with Sandbox(keep="back") as sandbox:
        assert (await sandbox.run("cat file")).stdout == "one\nafter\n"


async def test_a_command_that_is_no_text_is_a_step_all_the_same(make) -> None:
    async with make(history="each-run") as sandbox:
        (await sandbox.run([b"touch", b"odd\xff"])).check()
        (step,) = await sandbox.snapshots()
        assert step.step == 1 and step.command is not None
        assert step.command.isprintable() and "odd\\udcff" in step.command


async def test_a_step_that_cannot_be_kept_says_how_its_command_ended(make, monkeypatch) -> None:
    async with make(history="each-run") as sandbox:

        async def full(*given: object, **named: object) -> None:
            raise Exhausted("the disk of the state is full", limit="disk")

        workspace = sandbox._state.workspace
        monkeypatch.setattr(workspace, "take", full)
        with pytest.raises(Exhausted) as raised:
            await sandbox.run("exit 3")
        assert "3" in "".join(raised.value.__notes__)
        monkeypatch.undo()
        assert (await sandbox.run("exit 3")).exit_code == 3
