"""The files of one sandbox that are in the store: its image, its disk, its volumes."""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from cloister.errors import AlreadyExists, NotFound, RequestError
from cloister.model import SandboxId, quote
from cloister.node.held_volumes import HeldVolumes
from cloister.node.holding import as_held, is_by_size
from cloister.node.machine_disk import move_into_machine
from cloister.node.node import Node
from cloister.node.stock import open_store
from cloister.policy import Egress, ImageRoot, Policy, Storage, read_policy
from cloister.runtime.ground import Ground, GroundDisk
from cloister.runtime.microvm.stored import require_no_machine

if TYPE_CHECKING:
    from cloister.image import Image
    from cloister.store import Disk, KeptLock, KeptSandbox, Snapshot, Store

# What was forked once is forked again; but not while the first command of this one is waited for.
_PREPARE_AFTER_S = 0.05


@dataclass(frozen=True, slots=True)
class Occasion:
    """Why a snapshot is taken: somebody named it, or a command ended a step."""

    name: str | None = None
    step: int | None = None
    command: str | None = None


class Workspace:
    """What one sandbox stands on. The store's calls wait for a disk, so they run in threads."""

    def __init__(self, store: Store, id: SandboxId, policy: Policy) -> None:
        self._store = store
        self._id = id
        self._policy = policy
        self._lock: KeptLock | None = None
        self._asked: str | None = None
        self._kept: KeptSandbox | None = None
        self._volumes = HeldVolumes(store.volumes)
        self._head: str | None = None
        self._steps = 0
        self._has_lent = False
        self._is_by_size = False
        self._base: str | None = None
        self._given: Disk | None = None
        self._preparing: asyncio.TimerHandle | None = None
        self.image: Image | None = None
        self.disk: Disk | None = None
        self.kept_policy: Policy | None = None

    @classmethod
    async def open(
        cls,
        id: SandboxId,
        policy: Policy,
        keep: str | None,
        base: Snapshot | None,
        disk: Disk | None = None,
    ) -> Self:
        """Find or make all of it. Nothing is left behind if this raises.

        `disk` is one that was made of `base` ahead.
        """
        store = await open_store()
        workspace = cls(store, id, as_held(policy, store))
        workspace._given = disk
        workspace._is_by_size = is_by_size(policy)
        opening = asyncio.ensure_future(asyncio.to_thread(workspace._open, keep, base))
        try:
            await asyncio.shield(opening)
        except BaseException:
            # A thread cannot be cancelled: it is waited for, so that nobody is left behind it.
            await asyncio.wait([opening])
            await workspace.close(came_up=False)
            raise
        return workspace

    def _open(self, keep: str | None, base: Snapshot | None) -> None:
        if keep is not None:
            self._open_kept(keep)
        if self._kept is not None and base is not None:
            raise AlreadyExists(
                f"a kept sandbox {quote(keep)} exists; keep the fork under another name",
                what=self._kept.name,
            )
        self.image = self._find_image(base)
        self._volumes.hold(self._policy.volumes, for_machine=self._is_by_size)
        if self._kept is not None:
            self.disk = self._store.disks.find(self._kept.disk)
            self._head = self._kept.head
        elif self._policy.storage is Storage.DISK:
            self.disk = self._given or self.new_disk(base)
            self._head = self._base = None if base is None else base.id
            if keep is not None:
                self._keep_as(keep)
        elif base is not None:
            raise RequestError('a fork needs storage = "disk"; leave storage out, or say so')

    def _open_kept(self, keep: str) -> None:
        self._lock = self._store.kept.lock(keep)
        self._asked = keep
        try:
            self._kept = self._store.kept.find(keep)
        except NotFound:
            return
        self.kept_policy = read_policy(json.loads(self._kept.policy), f"kept sandbox {keep}")
        self._policy = self.kept_policy
        steps = (each.step for each in self._store.snapshots.list(keep))
        self._steps = max((step for step in steps if step is not None), default=0)

    def _find_image(self, base: Snapshot | None) -> Image | None:
        if self._kept is not None or base is not None:
            # The very image it was made on, whatever its name has come to mean.
            origin = base if base is not None else self._kept
            reference = None if origin is None else origin.image
        else:
            root = self._policy.root
            reference = root.reference if isinstance(root, ImageRoot) else None
        if reference is None:
            return None
        from cloister.image import Library

        return Library(self._store).find(reference)

    def new_disk(self, base: Snapshot | None) -> Disk:
        """Make a disk as this policy wants it, for this sandbox or one like it."""
        limits = self._policy.limits
        disk = self._store.disks.create(
            f"{self._id}-{secrets.token_hex(4)}",
            base=base,
            limit_bytes=None if self._is_by_size else limits.disk,
            limit_inodes=None if self._is_by_size else limits.inodes,
        )
        if self._is_by_size and base is not None:
            try:
                move_into_machine(disk, (disk.path, *disk.lowers), limits)
            except BaseException:
                self._store.disks.remove(disk)
                raise
        return disk

    def _keep_as(self, keep: str) -> None:
        if self.disk is None:
            raise RequestError('a kept sandbox needs storage = "disk"')
        self._kept = self._store.kept.create(
            keep,
            disk=self.disk.id,
            head=self._head,
            policy=self._policy_text(),
            image=None if self.image is None else self.image.digest,
            history=self._policy.history.value,
        )

    def _policy_text(self) -> str:
        return json.dumps(self._policy.as_dict(), sort_keys=True)

    @property
    def policy(self) -> Policy:
        """What it was made for, as the store can hold it."""
        return self._policy

    async def change_egress(self, egress: Egress | None) -> None:
        """Note what it may reach from now on: where it is kept it goes on so, not as it began."""
        self._policy = self._policy.replace(egress=egress, ledger=self._policy.ledger)
        kept = self._kept
        if kept is not None:
            text = self._policy_text()
            await asyncio.to_thread(self._store.kept.update, kept.name, policy=text)

    def require_same_root(self, policy: Policy) -> None:
        """Refuse to show what was written above one root above another."""
        if self.kept_policy is not None and policy.root != self.kept_policy.root:
            raise RequestError(
                f"{self._kept_name()} was made on another root; leave image and root out, "
                "or keep this one under another name"
            )
        runtime = Node.current().runtime_for(policy).name
        require_no_machine(self.ground, runtime)
        self._is_by_size = is_by_size(policy)
        if self._kept is not None and self.disk is not None:
            limit_bytes = None if self._is_by_size else policy.limits.disk
            self.disk = self._store.disks.resize(self.disk, limit_bytes)
            self._has_lent = self._store.disks.lend(self.disk)
        self._policy = policy
        self._volumes.hold(policy.volumes, for_machine=self._is_by_size)

    def _kept_name(self) -> str:
        return self._id if self._kept is None else quote(self._kept.name)

    @property
    def name(self) -> str:
        """What its snapshots go by: the name it is kept under, or the sandbox's id."""
        return self._id if self._kept is None else self._kept.name

    @property
    def ground(self) -> Ground:
        """What the runtime is told of it."""
        disk = None
        if self.disk is not None:
            sealed = tuple(map(str, self.disk.lowers))
            disk = GroundDisk(str(self.disk.path), sealed, durable=self._kept is not None)
        image = () if self.image is None else tuple(map(str, self.image.layers))
        return Ground(image, disk, self._volumes.ground)

    def stands_under(self, guest_pid: int) -> None:
        """Note which guest may write to the disk, in case this process is killed before it."""
        if self._lock is not None:
            self._lock.name_guest(guest_pid)
        self._volumes.name_guest(guest_pid)
        if self._has_lent and self.disk is not None:
            self._store.disks.resize(self.disk, self.disk.limit_bytes)
            self._has_lent = False
        if self._base is not None:
            later = asyncio.get_running_loop().call_later
            self._preparing = later(_PREPARE_AFTER_S, self._prepare_next)

    def _prepare_next(self) -> None:
        """Have a disk ready for the next fork of what this one was forked from."""
        if self._preparing is not None:
            self._preparing.cancel()
            self._preparing = None
        if self._base is not None:
            self._store.spares.prepare(self._base)
            self._base = None

    @property
    def takes_in_place(self) -> bool:
        """Whether a snapshot leaves the disk where it is."""
        return self._store.driver.name == "btrfs"

    def is_full(self) -> bool:
        """Whether the disk, or a volume the sandbox may write to, has reached its limit."""
        if self.disk is not None and self._store.disks.is_full(self.disk):
            return True
        return self._volumes.are_full()

    @property
    def step(self) -> int:
        """The number of the step that is under way, or would be."""
        return self._steps + 1

    def next_step(self) -> int:
        """Return the number of the step that ends now."""
        self._steps += 1
        return self._steps

    async def take(self, occasion: Occasion, *, idle: bool, name_later: bool = False) -> Snapshot:
        """Take a snapshot of the disk; with `idle` the sandbox must be on `ground` afterwards.

        With `name_later` it has its name from `give_name` only.
        """

        def take() -> Snapshot:
            if self.disk is None:
                raise RequestError("this sandbox has no disk in the store")
            taken = self._store.snapshots.take(
                self.disk,
                sandbox=self.name,
                idle=idle,
                policy=self._policy_text(),
                name=None if name_later else occasion.name,
                parent=self._head,
                image=None if self.image is None else self.image.digest,
                step=occasion.step,
                command=occasion.command,
                durable=occasion.name is not None,
            )
            self.disk = taken.disk or self.disk
            self._head = taken.snapshot.id
            if occasion.name is not None:
                self._store.spares.prepare(taken.snapshot.id)
            return taken.snapshot

        return await asyncio.to_thread(take)

    async def require_name_free(self, occasion: Occasion) -> None:
        """Say that a name is taken before anything is ended for a snapshot of that name."""
        if occasion.name is not None:
            require = self._store.snapshots.require_name_free
            await asyncio.to_thread(require, self.name, occasion.name)

    async def give_name(self, snapshot: Snapshot, occasion: Occasion) -> Snapshot:
        """Give a snapshot the name it was taken for, if it was for one."""
        if occasion.name is None:
            return snapshot
        return await asyncio.to_thread(self._store.snapshots.give_name, snapshot, occasion.name)

    async def go_back(self, target: Snapshot) -> Snapshot:
        """Make the disk what it was; return the snapshot that what it is now stays as."""
        left = await self.take(Occasion(), idle=True)
        await self.return_to(target)
        return left

    async def return_to(self, target: Snapshot) -> None:
        """Make the disk what it was; what it is now is gone."""

        def replace() -> None:
            old, self.disk = self.disk, self.new_disk(target)
            self._head = target.id
            if self._kept is not None:
                self._kept = self._store.kept.update(
                    self._kept.name, disk=self.disk.id, head=target.id
                )
            if old is not None:
                self._store.disks.remove(old)

        await asyncio.to_thread(replace)

    async def require_room(self) -> None:
        """Say that the disk of the state is full before anything is ended for a new tree."""
        from cloister.store.place import require_room

        await asyncio.to_thread(require_room, self._store.directory, self._store.driver.root)

    async def find(self, which: Snapshot | str | int) -> Snapshot:
        """Return a snapshot by itself, its id, its name, or the number of a step of this one."""
        if isinstance(which, bool):
            raise RequestError(f"snapshot is {quote(which)}; write a name or the number of a step")
        # What a caller holds may have been removed, or never have been there: the records know.
        text = str(which) if isinstance(which, str | int) else which.id
        whole = text if "@" in text or text.startswith("snap-") else f"{self.name}@{text}"
        return self._on_same_root(await asyncio.to_thread(self._store.snapshots.find, whole))

    def _on_same_root(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot that fits the root of this sandbox, or refuse it."""
        image = None if self.image is None else self.image.digest
        root = read_policy(json.loads(snapshot.policy), f"snapshot {snapshot.id}").root
        if snapshot.image != image or (image is None and root != self._policy.root):
            raise RequestError(
                f"snapshot {snapshot.id} is of a sandbox with another root; fork it instead"
            )
        return snapshot

    async def snapshots(self) -> tuple[Snapshot, ...]:
        """Return its snapshots, oldest first."""
        return tuple(await asyncio.to_thread(self._store.snapshots.list, self.name))

    @property
    def store(self) -> Store:
        """The store it is in."""
        return self._store

    @property
    def head(self) -> str | None:
        """The snapshot that its disk goes on from."""
        return self._head

    async def close(self, *, came_up: bool = True) -> None:
        """Let go of it: what is kept stays, what is not is removed.

        Of a sandbox that did not come up nothing new is kept, and what was kept is as it was.
        """
        self._prepare_next()

        def close() -> None:
            kept = self._kept
            if kept is not None and came_up:
                self._kept = self._store.kept.update(kept.name, policy=self._policy_text())
            elif kept is None and self.disk is not None:
                self._store.disks.remove(self.disk)
            self.disk = None
            self._volumes.close()
            if self._lock is not None:
                self._lock.release()
            if kept is None and self._asked is not None:
                # Nothing is kept by the name that was asked for: its lock would stay for nothing.
                self._store.kept.sweep_name(self._asked)
            if kept is not None and not came_up and self.kept_policy is None:
                self._store.kept.remove(kept.name)

        await asyncio.shield(asyncio.to_thread(close))
