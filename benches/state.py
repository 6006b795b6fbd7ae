"""Snapshots, forks, rewinds and steps of a sandbox that has changed a gigabyte in 50,000 files."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from benches import ours, state_peers
from benches.measure import NotMeasurable, Summary, Turn, summarise, take_turns, timed_ms
from benches.peers.peer import run_command
from benches.row import Bar, Row
from benches.setting import Setting
from benches.stores import LIMITS, a_store, fill, forget_snapshots
from cloister import Sandbox
from cloister.store import Store
from cloister.store.usage import StoreUsage

FILES, BYTES = 50_000, 2**30
QUICK_FILES, QUICK_BYTES = 5_000, 100 * 2**20
FEW_FILES, FEW_BYTES = 10, 10 * 4096
FORKS = 100
TRUE = ["/bin/true"]
# Copying what a sandbox has written takes minutes in all, and thousands of times what we take.
TURNS_OF_A_COPY = 2


async def measure(setting: Setting) -> list[Row]:
    rows: list[Row] = []
    for driver in ("btrfs", "plain"):
        try:
            async with a_store(setting.scratch, driver) as store:
                rows += await Bench(setting, store).measure()
        except NotMeasurable as reason:
            rows.append(Row(name=f"state, {driver}", unit="ms", why=str(reason)))
    return [*rows, *await state_peers.measure(setting)]


class Bench:
    """The rows of one driver."""

    def __init__(self, setting: Setting, store: Store) -> None:
        self.setting = setting
        self.store = store
        self.driver = store.driver.name
        self.files = QUICK_FILES if setting.quick else FILES
        self.bytes = QUICK_BYTES if setting.quick else BYTES
        self.numbers = itertools.count()

    async def measure(self) -> list[Row]:
        # Before there is anything that the filesystem has to clean up behind it.
        steps = await self.steps()
        async with (
            Sandbox(keep="large", limits=LIMITS) as large,
            Sandbox(keep="small", limits=LIMITS) as small,
        ):
            await fill(large, self.files, self.bytes)
            await fill(small, FEW_FILES, FEW_BYTES)
            rows = await self.snapshots(large, small)
            rows += [await self.rewinds(large)]
            taken = await large.snapshot("base")
            rows += [await self.fork_to_first_command(taken.id), await self.forks(taken.id)]
        return [*rows, steps]

    async def snapshots(self, large: Sandbox, small: Sandbox) -> list[Row]:
        """Written back first: what is still in the cache has to be written, by whoever waits.

        The pool is measured with a program running; plain directories are sealed, which only
        the guest may watch.
        """
        if self.driver == "btrfs":
            await large.start("sleep infinity")
            await small.start("sleep infinity")
        contenders: dict[str, Turn] = {
            "ours": self.settled(partial(self.take, large), large),
            "ours, 10 files": self.settled(partial(self.take, small), small),
            "cp -a": self.copying("--reflink=never"),
        }
        if self.driver == "btrfs":
            contenders["cp --reflink=always"] = self.copying("--reflink=always")
        rounds = self.setting.rounds(40)
        contest = await take_turns(contenders, rounds, least_turns=TURNS_OF_A_COPY)
        forget_snapshots(self.store)
        summaries = contest.summaries
        ratio = summaries["ours"].median / summaries["ours, 10 files"].median
        row = Row(
            name=f"snapshot of {self.files:,} files, {self.bytes >> 20} MiB, {self.driver}",
            unit="ms",
            ours=summaries["ours"].median,
            peer_name="cp -a",
            peer=summaries["cp -a"].median,
            kind=Bar.OURS_AT_MOST,
            bar=20.0,
            spread=summaries,
            absent=contest.dropped,
            facts={"times one of 10 files": round(ratio, 2)},
        )
        if self.driver == "plain":
            return [row]
        scale = Row(
            name="the same beside one of 10 files, btrfs",
            unit="ms",
            ours=summaries["ours"].median,
            peer_name="ours, 10 files",
            peer=summaries["ours, 10 files"].median,
            kind=Bar.RATIO_AT_MOST,
            bar=2.0,
        )
        return [row, scale, await self.dirty(large)]

    async def take(self, sandbox: Sandbox) -> None:
        await sandbox.snapshot(f"bench-{next(self.numbers)}")

    def settled(self, work: Callable[[], Awaitable[None]], sandbox: Sandbox) -> Turn:
        """A turn after some files have changed and all has been written back."""

        async def turn() -> float:
            number = next(self.numbers)
            await ours.run(
                sandbox, ["/bin/sh", "-c", f"for i in 0 1 2 3; do echo {number} > $i; done"]
            )
            self.store.driver.sync()
            return await timed_ms(work)()

        return turn

    def copying(self, reflink: str) -> Turn:
        """A turn of copying what the sandbox has written, which is what many do instead."""
        target = self.store.driver.root / "copied"

        async def turn() -> float:
            self.store.driver.sync()
            try:
                command = ["cp", "-a", reflink, str(self.written()), str(target)]
                return await timed_ms(partial(run_command, command))()
            finally:
                shutil.rmtree(target, ignore_errors=True)

        return turn

    def written(self) -> Path:
        """Where the large sandbox's files lie: its disk, or what that was sealed into."""
        disk = self.store.disks.find(self.store.kept.find("large").disk)
        trees = (
            bench / "upper" / "%" / "workspace" / "tree" for bench in (disk.path, *disk.lowers)
        )
        return next(tree for tree in trees if tree.exists())

    async def dirty(self, sandbox: Sandbox) -> Row:
        """Everything written anew and not written back: shown, no bar is laid on it."""
        taken = []
        for _ in range(3):
            await fill(sandbox, self.files, self.bytes)
            taken.append(await timed_ms(partial(self.take, sandbox))())
            forget_snapshots(self.store)
        return shown("the same, all of it dirty, btrfs", summarise(taken))

    async def rewinds(self, sandbox: Sandbox) -> Row:
        taken = await sandbox.snapshot("target")
        contest = await take_turns(
            {"ours": self.settled(partial(self.go_back, sandbox, taken.id), sandbox)},
            self.setting.rounds(40),
        )
        row = shown(f"rewind, {self.driver}", contest.summaries["ours"])
        return replace(row, kind=Bar.OURS_AT_MOST, bar=30.0)

    async def go_back(self, sandbox: Sandbox, to: str) -> None:
        await sandbox.rewind(to)

    async def fork_to_first_command(self, snapshot: str) -> Row:
        """From the call to the end of /bin/true, beside a sandbox in memory from nothing.

        Each turn begins when what the one before left to the background is over, for both alike;
        forks that follow each other without a pause, and ten at once, are shown beside it.
        """
        contest = await take_turns(
            {
                "ours": self.rested(first_command(partial(Sandbox.fork, snapshot)), snapshot),
                "cold start": self.rested(first_command(start_cold), snapshot),
                "without a pause": first_command(partial(Sandbox.fork, snapshot)),
                "ten at once, each": self.ten_at_once(snapshot),
            },
            self.setting.rounds(100),
        )
        return Row(
            name=f"fork to first command, {self.driver}",
            unit="ms",
            ours=contest.summaries["ours"].median,
            peer_name="cold start",
            peer=contest.summaries["cold start"].median,
            kind=Bar.RATIO_AT_MOST,
            bar=2.0,
            spread=contest.summaries,
        )

    def rested(self, turn: Turn, snapshot: str) -> Turn:
        """A turn after what is done in the background is done."""

        async def rested_turn() -> float:
            self.store.spares.wait([snapshot])
            self.store.driver.sync()
            return await turn()

        return rested_turn

    def ten_at_once(self, snapshot: str) -> Turn:
        """A turn of ten forks and their first commands, counted for each of them."""

        async def turn() -> float:
            forks = Sandbox.fork(snapshot, count=10)
            running: list[Sandbox] = []

            async def work() -> None:
                running.extend(await forks)
                await asyncio.gather(*(ours.run(one, TRUE) for one in running))

            try:
                return await timed_ms(work)() / 10
            finally:
                await asyncio.gather(*(one.stop() for one in running))

        return turn

    async def forks(self, snapshot: str) -> Row:
        """What a hundred forks take up before they write: by its free room, and by its quotas.

        The larger of both: room that comes back meanwhile would be taken off the first.
        """
        self.store.driver.sync()
        before = self.store.usage()
        async with Sandbox.fork(snapshot, count=FORKS) as forks:
            for fork in forks:
                await ours.run(fork, TRUE)
            self.store.driver.sync()
            after = self.store.usage()
        counted = held_by_disks(after) - held_by_disks(before)
        used = max(before.free_bytes - after.free_bytes, counted)
        return Row(
            name=f"disk used by a fork, of {FORKS}, {self.driver}",
            unit="MiB",
            ours=max(0, used) / FORKS / 2**20,
            kind=Bar.OURS_AT_MOST,
            bar=5.0,
        )

    async def steps(self) -> Row:
        """What a step of history adds to a command."""
        async with (
            Sandbox(storage="disk", limits=LIMITS) as without,
            Sandbox(storage="disk", limits=LIMITS, history="each-run") as stepping,
        ):
            contest = await take_turns(
                {
                    "ours": timed_ms(partial(ours.run, stepping, TRUE)),
                    "without history": timed_ms(partial(ours.run, without, TRUE)),
                },
                self.setting.rounds(150),
            )
        plain = contest.summaries["without history"].median
        row = shown(
            f"history each-run, added to a command, {self.driver}", contest.summaries["ours"]
        )
        added = contest.summaries["ours"].median - plain
        spread = contest.summaries
        return replace(row, ours=added, kind=Bar.OURS_AT_MOST, bar=10.0, spread=spread)


def held_by_disks(usage: StoreUsage) -> int:
    return sum(item.private_bytes for item in usage.items if item.kind == "disk")


def shown(name: str, summary: Summary) -> Row:
    return Row(name=name, unit="ms", ours=summary.median, spread={"ours": summary})


async def start_cold() -> list[Sandbox]:
    return [await Sandbox().open()]


def first_command(start: Callable[[], Awaitable[list[Sandbox]]]) -> Turn:
    """A turn up to the end of the first command; being rid of it is not in the figure."""

    async def turn() -> float:
        running: list[Sandbox] = []

        async def work() -> None:
            running.extend(await start())
            await ours.run(running[0], TRUE)

        try:
            return await timed_ms(work)()
        finally:
            for sandbox in running:
                await sandbox.stop()

    return turn
