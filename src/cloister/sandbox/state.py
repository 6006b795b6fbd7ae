"""What of a sandbox is in the store, and what is done with it: snapshot, rewind, steps."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cloister.errors import CloisterError, RequestError, Unsupported
from cloister.model import Profile, Result
from cloister.node import Node, Occasion, Workspace, as_held, require_countable
from cloister.node.remembered import require_awake
from cloister.policy import Egress, History, ImageRoot, LedgerMode, Policy, Storage
from cloister.sandbox.comparing import Comparing
from cloister.sandbox.remembering import Remembering, to_the_end
from cloister.sandbox.templated import find_template, launch, template_policy

if TYPE_CHECKING:
    from cloister.image import Image
    from cloister.model.approvals import Answer, Question
    from cloister.node.control_listener import Listener
    from cloister.node.templates import TemplateRecord
    from cloister.sandbox.approving import Approve, Desk
    from cloister.sandbox.process import Command
    from cloister.sandbox.recorded_changes import StepTrees
    from cloister.sandbox.recording import Recording
    from cloister.sandbox.sandbox import Sandbox
    from cloister.store import Snapshot

WORKSPACE = "/workspace"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller asked for, before it is known what is kept."""

    policy: Policy | None
    changes: Mapping[str, Any]
    keep: str | None
    base: Snapshot | None = None
    template: str | None = None
    approve: Approve | None = None


class State(Remembering, Comparing):
    """The stored side of one sandbox; nothing of it is touched where the policy needs no store."""

    def __init__(self, sandbox: Sandbox, wanted: Wanted) -> None:
        super().__init__()
        self._sandbox = sandbox
        self._wanted = wanted
        self._workspace: Workspace | None = None
        self._listener: Listener | None = None
        self._closed = asyncio.Event()
        self._still: asyncio.Future[None] | None = None
        self._paused = False
        self._came_up = False
        self._template: TemplateRecord | None = None
        self._desk: Desk | None = None
        self.recording: Recording | None = None

    @property
    def keep(self) -> str | None:
        """The name under which its disk outlives it."""
        return self._wanted.keep

    @property
    def workspace(self) -> Workspace:
        """Its files in the store, or say that they are in memory."""
        if self._workspace is None or self._workspace.disk is None:
            raise Unsupported(
                "this sandbox has its files in memory; to take snapshots of it, start it with "
                'storage="disk" (or keep=, or history="each-run")'
            )
        return self._workspace

    @property
    def stands_still(self) -> bool:
        """Whether a snapshot or a rewind is under way."""
        return self._still is not None

    async def wait_until_moving(self) -> None:
        """Wait while the sandbox stands still: what it is about to be is not there yet."""
        while self._still is not None:
            await asyncio.shield(self._still)

    def stand_on(self, snapshot: Snapshot) -> None:
        """Begin as a snapshot was."""
        self._wanted = replace(self._wanted, base=snapshot)

    async def prepare(self) -> Workspace | None:
        """Find or make what the sandbox stands on, if it stands on anything of the store."""
        sandbox, wanted, policy = self._sandbox, self._wanted, self._sandbox.policy
        if wanted.template is not None:
            self._template = await find_template(wanted.template)
            policy = template_policy(self._template, wanted.policy, wanted.changes)
        if wanted.keep is None and wanted.base is None and not _needs_store(policy):
            await self._open_ledger()
            return None
        says_ledger = policy.ledger_is_stated
        if wanted.keep is not None and not says_ledger:
            policy = policy.replace(ledger=LedgerMode.ON)
        workspace = await Workspace.open(
            sandbox.id, policy, wanted.keep, wanted.base, self.ready_disk
        )
        self._workspace = workspace
        if wanted.keep is not None and self.memory is None:
            require_awake(workspace.store, wanted.keep)
        if workspace.kept_policy is None:
            policy = workspace.policy
        elif wanted.policy is None:
            policy = workspace.kept_policy.replace(**wanted.changes)
        elif not says_ledger:
            policy = policy.replace(ledger=workspace.kept_policy.ledger)
        policy = as_held(policy, workspace.store)
        require_countable(policy, workspace.store)
        workspace.require_same_root(policy)
        image = workspace.image
        if image is None:
            sandbox.adopt(policy, {}, WORKSPACE)
        else:
            sandbox.adopt(_as_image_user(policy, image), image.env, image.workdir or WORKSPACE)
        await self._open_ledger()
        return workspace

    async def _open_ledger(self) -> None:
        """Begin to record, where the policy wants it, before anything is started."""
        sandbox, workspace, keep = self._sandbox, self._workspace, self._wanted.keep
        if sandbox.policy.ledger is LedgerMode.OFF:
            return
        # Imported when needed: most sandboxes have no ledger.
        from cloister.sandbox.recording import Recording
        from cloister.store.place import state_directory

        image = None if workspace is None else workspace.image
        self.recording = await Recording.open(
            state_directory(),
            sandbox.id if keep is None else keep,
            sandbox.policy,
            # What is kept has one ledger for all its life, in which each start names its sandbox.
            label=sandbox.label or (None if keep is None else sandbox.id),
            image=None if image is None else image.digest,
            base=self._wanted.base,
            traceparent=sandbox.policy.env.get("TRACEPARENT"),
        )

    async def ask(self, question: Question) -> Answer:
        """Have something answered by a person, as its policy says."""
        if self._desk is None:
            # Imported when needed: most sandboxes never ask.
            from cloister.sandbox.approving import Desk

            has_disk = self._workspace is not None and self._workspace.disk is not None
            self._desk = Desk(
                self.keep or self._sandbox.id,
                self._sandbox.policy.approvals,
                Node.current().approvals,
                approve=self._wanted.approve,
                record=None if self.recording is None else self.recording.approvals,
                snapshot=self._snapshot_before if has_disk else None,
            )
        return await self._desk.ask(question)

    def forget_answers(self) -> None:
        """Have asked anew what a person has allowed to stay so."""
        if self._desk is not None:
            self._desk.forget()

    async def change_egress(self, egress: Egress | None) -> None:
        """Note what it may reach from now on, also when it is opened again."""
        # What was asked by the old rules while they were replaced.
        self.forget_answers()
        if self._workspace is not None:
            await self._workspace.change_egress(egress)

    async def _snapshot_before(self) -> str:
        return (await self.snapshot(None)).id

    def record_process(
        self, command: Command, module: str | None = None
    ) -> Callable[[Result | CloisterError], None]:
        """Write that a caller starts a process; return what is to be told how it ended.

        `module` is the digest of what is run without being executed.
        """
        if self.recording is None:
            raise RequestError("this sandbox has no ledger")
        in_steps = self._sandbox.policy.history is History.EACH_RUN
        step = self._workspace.step if in_steps and self._workspace is not None else None
        return self.recording.process(command, step, module)

    async def launch(self) -> None:
        """Start what its template starts, and wait until that is ready."""
        if self._template is not None:
            await launch(self._sandbox, self._template)

    @property
    def is_reopened(self) -> bool:
        """Whether it goes on with what was kept before."""
        return self._workspace is not None and self._workspace.kept_policy is not None

    @property
    def is_paused(self) -> bool:
        """Whether the owner holds every process still."""
        return self._paused

    async def listen(self) -> None:
        """Let other processes of the same user reach it, if it is kept and so has a name."""
        if self._wanted.keep is not None:
            # Imported when needed: most sandboxes are not kept.
            from cloister.node.control_listener import Listener

            directory = self.workspace.store.directory
            self._listener = await Listener.open(self._sandbox, directory, self._wanted.keep)

    async def wait_ended(self) -> None:
        """Wait until nothing of it is left, and whoever asked for its end knows."""
        await self._closed.wait()
        if self._listener is not None:
            await self._listener.wait_answered()

    def come_up(self) -> None:
        """The start is over, and nothing failed: from now on what is kept stays."""
        self._came_up = True
        self.has_gone_on()

    def stands_under(self, guest_pid: int) -> None:
        """Note which guest may write to the disk, if there is one."""
        if self._workspace is not None:
            self._workspace.stands_under(guest_pid)

    async def close(self, ending: BaseException | None) -> None:
        """Let go of it: what is kept stays, what is not is removed."""
        if self._listener is not None:
            self._listener.close()
        try:
            if self.recording is not None:
                # Before the snapshots go: they are what is compared.
                await self.recording.changes.settle()
            await self.let_go_of_brought()
            try:
                await self.fall_back()
            finally:
                if self._workspace is not None:
                    workspace, self._workspace = self._workspace, None
                    await workspace.close(came_up=self._came_up)
        finally:
            try:
                if self.recording is not None:
                    recording, self.recording = self.recording, None
                    await recording.close(ending)
            finally:
                self._closed.set()

    def is_full(self) -> bool:
        """Whether the disk has reached its limit."""
        return self._workspace is not None and self._workspace.is_full()

    async def pause(self, paused: bool) -> None:
        """Remember what the owner asked for: a snapshot does not continue what is paused."""
        await self._sandbox.freeze(paused)
        self._paused = paused
        if self.recording is not None:
            self.recording.paused(paused)

    async def snapshot(self, name: str | None, *, memory: bool = False) -> Snapshot:
        """Take a snapshot; processes go on afterwards as if nothing had been."""
        async with self._standing_still():
            work = self._take_remembering if memory else self._take
            return await to_the_end(work(Occasion(name=name)))

    async def step(self, command: str | Sequence[str | bytes]) -> None:
        """Take the snapshot that ends a command, where the policy wants a history."""
        if self._sandbox.policy.history is History.EACH_RUN and self._workspace is not None:
            async with self._standing_still():
                step = self._workspace.next_step()
                occasion = Occasion(step=step, command=_words(command))
                taken = await to_the_end(self._take(occasion))
                if self.recording is not None and not self._is_machine:
                    self.recording.changes.add(step, self._trees_of(taken))

    def _trees_of(self, taken: Snapshot) -> StepTrees:
        from cloister.sandbox.recorded_changes import StepTrees

        snapshots = self.workspace.store.snapshots
        before = None if taken.parent is None else snapshots.benches(snapshots.find(taken.parent))
        return StepTrees(*self.compared(), snapshots.benches(taken), before)

    async def _take(self, occasion: Occasion) -> Snapshot:
        taken = await self._take_now(occasion)
        if self.recording is not None:
            self.recording.snapshot(taken)
        return taken

    async def _take_now(self, occasion: Occasion) -> Snapshot:
        sandbox, workspace = self._sandbox, self.workspace
        if not sandbox.is_idle or self._paused:
            return await self._take_live(workspace, occasion)
        if workspace.takes_in_place:
            return await workspace.take(occasion, idle=True)
        # Nothing runs inside but the guest: its disk becomes the snapshot, and it goes on with
        # another guest on a new disk above that.
        await workspace.require_room()
        await sandbox.end_guest()
        try:
            return await workspace.take(occasion, idle=True)
        finally:
            await sandbox.start_guest(workspace.ground)

    async def _take_live(self, workspace: Workspace, occasion: Occasion) -> Snapshot:
        if self._paused:
            return await workspace.take(occasion, idle=False)
        try:
            await self._sandbox.freeze(True)
        except Unsupported as error:
            raise Unsupported(
                "programs are running, and this host cannot hold them still for a snapshot: "
                f"{error}; end them first, or let `cloister doctor` say how to enable it"
            ) from error
        try:
            return await workspace.take(occasion, idle=False)
        finally:
            await self._sandbox.freeze(False)

    async def rewind(self, to: Snapshot | str | int) -> Snapshot:
        """Go back to a snapshot. Programs end; what is now is kept as a branch of its own."""
        async with self._standing_still():
            target = await self.workspace.find(to)
            await to_the_end(self._go_back(target))
            return target

    async def _go_back(self, target: Snapshot) -> None:
        sandbox, workspace = self._sandbox, self.workspace
        await workspace.require_room()
        await sandbox.end_guest()
        try:
            left = await workspace.go_back(target)
            if self.recording is not None:
                self.recording.rewound(target, left)
        finally:
            self._paused = False
            await sandbox.start_guest(workspace.ground)

    @contextlib.asynccontextmanager
    async def _standing_still(self) -> AsyncIterator[None]:
        """One at a time, and nothing new begins inside meanwhile."""
        await self.wait_until_moving()
        # Also says that the sandbox is not running, if it is not.
        self._sandbox.enter()
        still = self._still = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            self._still = None
            still.set_result(None)
            self._sandbox.leave()


def _as_image_user(policy: Policy, image: Image) -> Policy:
    """Run as the image's user, where nobody said otherwise; never as root by its word alone."""
    stated = policy.user is not None or policy.profile is Profile.ROOT
    if stated or image.user is None or 0 in image.user:
        return policy
    return policy.replace(user=image.user)


def _needs_store(policy: Policy) -> bool:
    in_memory = policy.storage is Storage.MEMORY
    return not in_memory or bool(policy.volumes) or isinstance(policy.root, ImageRoot)


def _words(command: str | Sequence[str | bytes]) -> str:
    """Return a command as one line, for the list of steps."""
    words = command
    if not isinstance(words, str):
        words = shlex.join(os.fsdecode(part) for part in words)
    # Bytes that are no text cannot be kept as such.
    return words.encode(errors="backslashreplace").decode()
