"""Starts, watches and ends sandboxes through the launcher: one runtime per event loop."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import itertools
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from cloister.errors import CloisterError, GuestGone, LaunchFailed, RequestError, Unsupported
from cloister.model import MountMode, Profile, SandboxId, Trust, User, new_sandbox_id
from cloister.policy import HostRoot, Policy, RuntimeFacts
from cloister.runtime.base import Guest, Posture
from cloister.runtime.doors import Doors
from cloister.runtime.ground import BARE, Ground
from cloister.runtime.memory import Memory
from cloister.runtime.namespace import ids
from cloister.runtime.namespace.cgroups import GroupFiles
from cloister.runtime.namespace.guest import NamespaceGuest
from cloister.runtime.namespace.instance import Instance
from cloister.runtime.namespace.launcher import Launcher
from cloister.runtime.namespace.memory_place import memory_directory
from cloister.runtime.namespace.planning import Identities, RoomKey, make_plan, make_room, room_key
from cloister.runtime.namespace.posture import go_on, parse_posture, require_posture
from cloister.runtime.namespace.spare import AFTER_START_S, Spare
from cloister.runtime.plan import Plan, Room
from cloister.wire import Hello, Link

_GREETING_S = 10.0
# Policies whose plans are remembered.
_ROOMS = 64
GuestKind = TypeVar("GuestKind", bound=NamespaceGuest)


class NamespaceRuntime:
    """The wall of kernel namespaces."""

    name = "namespace"

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._instance: Instance | None = None
        self._launcher: Launcher | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._ranges: dict[int, int] = {}
        self._rooms: dict[RoomKey, Room] = {}
        self._lost: dict[int, Callable[[CloisterError], None]] = {}
        self._spare = Spare(self._launch_spare, self.end, self.another)

    def record_path(self, id: SandboxId) -> Path:
        """Return where a line about a sandbox of ours goes; swept with everything else of ours."""
        if self._instance is None:
            raise RequestError("prepare() comes before record_path()")
        return self._instance.base / f"{self._instance.name}.{id}.json"

    def launcher_path(self, name: str) -> str:
        """Return how a plan names what the launcher has made for all."""
        if self._instance is None:
            raise RequestError("prepare() comes before launcher_path()")
        return str(self._instance.directory / name)

    def memory_place(self, id: str) -> Path:
        """Return a directory for memory of a sandbox, swept with everything else of ours."""
        if self._instance is None:
            raise RequestError("prepare() comes before memory_place()")
        place = memory_directory(self._instance.base)
        return place / f"{self._instance.name}.{id}.memory"

    def with_way_out(self, ground: Ground, policy: Policy) -> Ground:
        """Return the ground with what the policy's egress needs of it."""
        if self._instance is None:
            raise RequestError("prepare() comes before with_way_out()")
        files = ground.files
        if not isinstance(policy.root, HostRoot):
            # The host's programs come with an /etc of ours; others are told whom to ask for names.
            resolver = self._instance.directory / "etc" / "resolv.conf"
            files = (*files, (str(resolver), "etc/resolv.conf"))
        return dataclasses.replace(ground, has_egress=True, files=files)

    def facts(self) -> RuntimeFacts:
        """Whether this host can run it: decided by the launch itself, which refuses by step."""
        return RuntimeFacts(self.name, Trust.INTERNAL, 1, True, None)

    async def prepare(self) -> None:
        """Start the launcher, if it is not there or has died."""
        if self._launcher is not None and not self._launcher.failed:
            return
        if self._preparing is None or self._preparing.done():
            self._preparing = asyncio.get_running_loop().create_task(self._prepare())
        # A caller that is cancelled leaves the work to whoever comes next: half of it would be
        # a lock and a directory that nobody knows of.
        await asyncio.shield(self._preparing)

    async def _prepare(self) -> None:
        if self._launcher is not None:
            # It has died: taken off the process table, and its last pipe closed.
            launcher, self._launcher = self._launcher, None
            await launcher.close()
        if self._instance is not None:
            instance, self._instance = self._instance, None
            instance.close()
        self._rooms.clear()
        self._instance = await asyncio.to_thread(Instance.open)
        self._launcher = await self._instance.start_launcher()
        self._launcher.on_gone = self._on_gone

    def plan(self, id: SandboxId, policy: Policy, ground: Ground = BARE) -> Plan:
        """Return what the launcher will be told, or has been told of a spare.

        A spare is had by the start that follows at once, and by no other.
        """
        instance = self._instance
        if instance is None:
            raise RequestError("prepare() comes before plan()")
        if not ground.volumes and not ground.files:
            room = self._rooms.get(room_key(policy, ground))
            spare = None if room is None else self._spare.plan_for(room)
            if spare is not None:
                return spare
        idmap = os.geteuid() == 0
        identities = self._identities(instance, policy, ground)
        try:
            room = self._room(instance, policy, ground, identities, idmap=idmap)
            return make_plan(policy, ground, room, identities, idmap=idmap)
        except BaseException:
            if identities.first is not None and identities.first != ids.STORE_SLICE:
                instance.pool_give_back(identities.first)
            raise

    def _room(
        self,
        instance: Instance,
        policy: Policy,
        ground: Ground,
        identities: Identities,
        *,
        idmap: bool,
    ) -> Room:
        key = room_key(policy, ground)
        room = self._rooms.get(key)
        if room is None:
            room = make_room(
                policy,
                ground,
                instance.layout,
                instance.directory,
                init=identities.init,
                single=identities.first is None,
                idmap=idmap,
            )
            # A directory can disappear, a name can come to mean another image; the host's
            # programs stay where they are.
            if isinstance(policy.root, HostRoot) and not policy.root.extra:
                if len(self._rooms) >= _ROOMS:
                    self._rooms.clear()
                self._rooms[key] = room
        return room

    def _identities(self, instance: Instance, policy: Policy, ground: Ground) -> Identities:
        init = User(0, 0)
        if instance.pool is None:
            user = policy.run_as
            if policy.profile is Profile.ROOT:
                user = init
            uids, gids = ids.single_map(user)
            return Identities(uids, gids, None, user, False)
        if os.geteuid() == 0:
            first = instance.pool.take()
            whole = ids.root_map(first)
            return Identities(whole, whole, first, init, True)
        # The owners on a disk are what they are: all that use one have the same slice.
        first = ids.STORE_SLICE if ground.is_stored else instance.pool.take()
        shows_own_files = any(mount.mode is not MountMode.COPY for mount in policy.mounts)
        user = policy.run_as
        uids = ids.slice_map(first, user.uid if shows_own_files else None)
        gids = ids.slice_map(first, user.gid if shows_own_files else None)
        return Identities(uids, gids, first, init, True)

    async def start(
        self, id: SandboxId, plan: Plan, on_lost: Callable[[CloisterError], None]
    ) -> NamespaceGuest:
        """Build the wall; nothing has run inside when this returns or raises."""
        self._spare.begin()
        try:
            spare = self._spare.take(plan)
            if spare is None:
                guest = await self.launch(id, plan, on_lost, NamespaceGuest, require_posture)
            else:
                # Its launch is this one's: whoever gives up on this ends that.
                guest = await spare
                self.hand_over(guest, id, on_lost)
            self._spare.started(plan)
            return guest
        finally:
            self._spare.over(AFTER_START_S)

    def hand_over(
        self, guest: NamespaceGuest, id: SandboxId, on_lost: Callable[[CloisterError], None]
    ) -> None:
        """Give one that was begun ahead to whoever has come for it."""
        guest.id = id
        guest.link.on_lost = on_lost
        self._lost[guest.number] = on_lost

    def expect_end(self, guest: NamespaceGuest) -> Callable[[CloisterError], None] | None:
        """Take the end of a guest for no loss; return whom it would have been told."""
        return self._lost.pop(guest.number, None)

    async def _launch_spare(self, plan: Plan) -> NamespaceGuest:
        return await self.launch(
            new_sandbox_id(),
            plan,
            lambda error: self._spare.lost(plan),
            NamespaceGuest,
            require_posture,
        )

    def another(self, plan: Plan) -> Plan | None:
        """Return the plan of one more sandbox of the same kind, if there are ids at hand for it."""
        pool = None if self._instance is None else self._instance.pool
        if plan.uid_map[0].count == 1 and pool is None:
            return dataclasses.replace(plan)
        first = None if pool is None else pool.take_spare()
        if first is None:
            return None
        whole = ids.root_map(first) if os.geteuid() == 0 else ids.slice_map(first, None)
        return dataclasses.replace(plan, uid_map=whole, gid_map=whole)

    async def launch(
        self,
        id: SandboxId,
        plan: Plan,
        on_lost: Callable[[CloisterError], None],
        kind: type[GuestKind],
        require: Callable[[Plan, Posture], None],
        *,
        log: int | None = None,
        greeting_s: float = _GREETING_S,
        memory: Memory | None = None,
        opening: Sequence[tuple[bytes, Sequence[int]]] = (),
        silent: bool = False,
    ) -> GuestKind:
        """Perform a plan and return its guest, of this `kind`, once its posture is as required.

        `log` is where a kernel of its own says what went wrong; `opening` is what it is told,
        with descriptors, before there is a guest. With `memory` the guest does not begin but goes
        on: over the link it had, or renewed. One that is `silent` never runs, and says nothing.
        """
        launcher, instance, number = self._launcher, self._instance, next(self._numbers)
        if launcher is None or instance is None:
            raise RequestError("prepare() comes before start()")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        if plan.uid_map[0].count > 1:
            first = min(r.outside for r in plan.uid_map if r.outside != 0)
            if first != ids.STORE_SLICE:
                self._ranges[number] = first
        if memory is not None and memory.link is not None:
            link = memory.link
        else:
            first = 1 if memory is None else memory.first_id
            carries = not plan.stream_transport
            link = Link(ours, carries_descriptors=carries, on_lost=on_lost, first_id=first)
        self._lost[number] = on_lost
        refusals: list[CloisterError] = []

        def refused(error: CloisterError) -> None:
            refusals.append(error)
            link.fail(error)

        try:
            with theirs:
                ends = (theirs.fileno(), *(() if log is None else (log,)))
                launcher.launch(number, plan.encoded, ends, refused)
            for words, descriptors in opening:
                # Not by the link, which may be one that is held.
                _tell(ours, words, descriptors)
            if memory is not None:
                await go_on(link, ours, memory, greeting_s)
            facts = b"" if silent else (await self._greeting(link, greeting_s)).facts
            posture = parse_posture(facts, {"wall": kind.runtime})
            require(plan, posture)
            launched = await launcher.launched(number)
            doors = Doors.of(launched.doors)
        except BaseException as error:
            self._lost.pop(number, None)
            link.close()
            await asyncio.shield(launcher.destroy(number))
            # The end of the guest can be seen before the launcher's word on what went wrong.
            if refusals and isinstance(error, GuestGone):
                raise refusals[0] from None
            raise
        groups = GroupFiles(instance.layout, f"{instance.name}.{launched.group}")
        template = (f"{instance.directory}/", f"/proc/{launcher.pid}/root")
        return kind(id, number, plan, link, launched.pid, posture, groups, template, doors)

    async def _greeting(self, link: Link, greeting_s: float) -> Hello:
        """Wait for the guest's first words, but not for ever."""
        deadline = asyncio.get_running_loop().call_later(
            greeting_s,
            link.fail,
            GuestGone("the guest did not report within the time it has to start", reason="hung"),
        )
        try:
            return await link.greeted
        finally:
            deadline.cancel()

    async def destroy(self, guest: Guest) -> None:
        """End it by the kernel's means; the guest is not asked."""
        if not isinstance(guest, NamespaceGuest):
            raise RequestError("this guest belongs to another runtime")
        self._spare.begin()
        try:
            await self.end(guest)
        finally:
            self._spare.over()

    async def end(self, guest: NamespaceGuest) -> None:
        """End one, whatever else is being launched or ended."""
        self._lost.pop(guest.number, None)
        if guest.doors is not None:
            guest.doors.close()
            guest.doors = None
        ending = None if self._launcher is None else self._launcher.destroy(guest.number)
        if not guest.link_stays:
            guest.link.close()
        guest.close()
        if ending is not None:
            await ending

    async def pause(self, guest: Guest, paused: bool) -> None:
        """Stop or continue every process inside."""
        if not isinstance(guest, NamespaceGuest) or self._launcher is None:
            raise RequestError("this guest belongs to another runtime")
        number = await self._launcher.freeze(guest.number, paused)
        if number == errno.EOPNOTSUPP:
            raise Unsupported("pausing needs a cgroup v2 hierarchy; see `cloister doctor`")
        if number:
            raise LaunchFailed(
                f"the sandbox could not be {'paused' if paused else 'resumed'}: "
                f"{errno.errorcode.get(number, number)}",
                step="freeze",
                errno=number,
            )

    async def fill_spare(self) -> None:
        """Have what is to be in stock; return when it is there."""
        await self._spare.fill()

    async def end_spare(self) -> None:
        """Have no sandbox in stock; return when there is none."""
        await self._spare.end()

    async def close(self) -> None:
        """End everything and let go of what this process holds."""
        await self._spare.end()
        if self._preparing is not None:
            await asyncio.wait([self._preparing])
        if self._launcher is not None:
            launcher, self._launcher = self._launcher, None
            await launcher.close()
        if self._instance is not None:
            instance, self._instance = self._instance, None
            instance.close()

    def abandon(self) -> None:
        """After a fork, in the child: let go of the parent's launcher without ending it."""
        if self._launcher is not None:
            self._launcher.abandon()
        if self._instance is not None:
            self._instance.abandon()

    def _on_gone(self, number: int) -> None:
        first = self._ranges.pop(number, None)
        if first is not None and self._instance is not None:
            self._instance.pool_give_back(first)
        on_lost = self._lost.pop(number, None)
        if on_lost is not None:
            error = None if self._launcher is None else self._launcher.error
            on_lost(error or GuestGone("the sandbox's first process ended", reason="gone"))


def cell_binary() -> Path:
    """Return the launcher's binary as installed."""
    return Path(__file__).parents[2] / "bin" / "cell"


def _tell(ours: socket.socket, words: bytes, descriptors: Sequence[int]) -> None:
    try:
        socket.send_fds(ours, [words], descriptors)
    except OSError as error:
        raise GuestGone(
            f"it ended before it was told what to do: {error}", reason="gone"
        ) from error
