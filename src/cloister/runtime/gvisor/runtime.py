"""Starts sandboxes whose kernel is gVisor's, inside the wall that the launcher builds anyway."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from cloister.errors import (
    CloisterError,
    GuestGone,
    LaunchFailed,
    ProtocolViolation,
    RequestError,
    Unsupported,
)
from cloister.model import SandboxId, new_sandbox_id
from cloister.policy import STRENGTHS, Policy, RuntimeFacts
from cloister.runtime.base import Guest, Posture
from cloister.runtime.dialler import Dialler
from cloister.runtime.ground import BARE, Ground
from cloister.runtime.gvisor.bundle import kernel_of, kernel_rlimits, restoring
from cloister.runtime.gvisor.posture import KERNEL, outside, programs, require_posture
from cloister.runtime.gvisor.program import INSTALL, candidates, find_runsc
from cloister.runtime.gvisor.saving import (
    goes_on,
    hold_savable,
    make_image_place,
    require_release,
    save,
    write_release,
)
from cloister.runtime.gvisor.standing import take_over
from cloister.runtime.memory import Memory, Renewal
from cloister.runtime.namespace import NamespaceRuntime
from cloister.runtime.namespace.guest import NamespaceGuest
from cloister.runtime.namespace.ids import why_no_range
from cloister.runtime.namespace.runtime import cell_binary
from cloister.runtime.namespace.saving_room import room_to_save
from cloister.runtime.namespace.spare import AFTER_START_S, Spare
from cloister.runtime.plan import Plan, Room
from cloister.runtime.refusals import Refusals
from cloister.runtime.way_out import WayOut

# Three starts of a large program, which on a busy machine take their time.
_GREETING_S = 60.0
_MAX_LOG = 4096
# The word with which the warden is told where connections are asked for.
_DIAL = b"d"
# Policies whose plans are remembered.
_ROOMS = 64
# What runsc itself takes, beside what runs inside.
_OWN_MEMORY_BYTES = 64 * 2**20
# A thread inside is several on the host, and runsc has some of its own. Out of reach: inside, the
# limit is held by gVisor's kernel, which would not survive this one.
_THREADS_EACH, _OWN_THREADS = 8, 512


class GvisorGuest(NamespaceGuest):
    """One running sandbox of this runtime."""

    runtime = "gvisor"
    shares_kernel = False
    word: socket.socket | None = None
    way_out: WayOut | None = None
    # What its programs read of renewals.
    told = Renewal(0, "").told

    def close(self) -> None:
        """Let go of what its runtime holds for it beside its link."""
        if self.way_out is not None:
            self.way_out.close()
            self.way_out = None
        if self.word is not None:
            self.word.close()
            self.word = None
        for _, path in () if self.plan.kernel is None else self.plan.kernel.written:
            shutil.rmtree(path, ignore_errors=True)

    @property
    def is_alone(self) -> bool:
        """Whether nothing runs inside but the guest: only gVisor's kernel knows."""
        return False


class GvisorRuntime:
    """The wall of a kernel in user space, within the launcher's wall."""

    name = "gvisor"

    def __init__(self, launching: NamespaceRuntime) -> None:
        self._launching = launching
        # The part of a plan that sandboxes of one policy share, with the launcher's it was made of.
        self._rooms: dict[tuple[Policy, bool, bool], tuple[Room, Room]] = {}
        self._spare = Spare(self._launch_spare, launching.end, launching.another, over_streams=True)

    def facts(self) -> RuntimeFacts:
        """Whether there is a runsc; whether it works here, its start says."""
        why_not = why_no_range()
        if not candidates():
            why_not = f"runsc is not installed; {INSTALL}"
        strength = STRENGTHS[self.name]
        return RuntimeFacts(self.name, strength, 2, why_not is None, why_not, own_kernel=True)

    async def prepare(self) -> None:
        """Start the launcher, and find out which runsc there is."""
        await self._launching.prepare()
        await asyncio.to_thread(find_runsc)

    def record_path(self, id: SandboxId) -> Path:
        """Return where a line about a sandbox of ours goes."""
        return self._launching.record_path(id)

    def memory_place(self, id: str) -> Path:
        """Return a directory for memory of a sandbox, saved or to go on from."""
        return self._launching.memory_place(id)

    def kept(self, guest: Guest, name: str) -> None:
        """Nothing stands on what runsc writes: it is one stream, in which nothing has its place."""

    async def let_go(self, memory: Memory) -> None:
        """Nothing is made of saved memory: each sandbox reads it for itself."""

    def with_way_out(self, ground: Ground, policy: Policy) -> Ground:
        """Return the ground with what the policy's egress needs of it."""
        return self._launching.with_way_out(ground, policy)

    def plan(self, id: SandboxId, policy: Policy, ground: Ground = BARE) -> Plan:
        """Return what the launcher will be told."""
        runsc = find_runsc()
        key = (policy, ground.disk is not None, ground.has_egress)
        if key in self._rooms and not ground.volumes and not ground.files:
            spare = self._spare.plan_for(self._rooms[key][1])
            if spare is not None:
                return spare
        plan = self._launching.plan(id, _kernel_policy(policy), ground)
        if plan.uid_map[0].count == 1 and len(plan.uid_map) == 1:
            raise Unsupported(
                'the runtime "gvisor" needs a range of ids of its own; add one for you to '
                "/etc/subuid and /etc/subgid, and install newuidmap, or run as root"
            )
        saved = None
        if ground.disk is not None:
            # Made for this very one; nobody else's ids may write there, and nobody may look.
            saved = self.memory_place(id)
            make_image_place(saved)
        kernel = kernel_of(runsc, os.path.realpath(cell_binary()), policy, plan, saved=saved)
        room = self._room(key, plan.room)
        return dataclasses.replace(plan, room=room, kernel=kernel, stream_transport=True)

    def _room(self, key: tuple[Policy, bool, bool], launchers: Room) -> Room:
        known = self._rooms.get(key)
        if known is not None and known[0] is launchers:
            return known[1]
        room = dataclasses.replace(launchers, rlimits=kernel_rlimits(launchers.rlimits))
        if len(self._rooms) >= _ROOMS:
            self._rooms.clear()
        self._rooms[key] = (launchers, room)
        return room

    async def start(
        self, id: SandboxId, plan: Plan, on_lost: Callable[[CloisterError], None]
    ) -> Guest:
        """Build the wall; nothing has run inside when this returns or raises."""
        self._spare.begin()
        try:
            spare = self._spare.take(plan)
            if spare is None:
                guest: NamespaceGuest = await self._launch(id, plan, on_lost)
            else:
                guest = await spare
                self._launching.hand_over(guest, id, on_lost)
            self._spare.started(plan)
            return guest
        finally:
            self._spare.over(AFTER_START_S)

    async def _launch_spare(self, plan: Plan) -> GvisorGuest:
        return await self._launch(new_sandbox_id(), plan, lambda error: self._spare.lost(plan))

    async def checkpoint(self, guest: Guest, is_kept: Callable[[str], bool]) -> Memory:
        """Have runsc write its memory down, all of it, by which it ends."""
        if not isinstance(guest, GvisorGuest) or guest.word is None:
            raise RequestError("this guest belongs to another runtime")
        if guest.plan.disk is None:
            raise Unsupported('memory is saved with a disk; say storage="disk" at the start')
        await hold_savable(guest.link)
        # Its end is not a loss from here on.
        on_lost = self._launching.expect_end(guest)
        try:
            with room_to_save(guest.groups):
                await save(guest.word)
        except LaunchFailed as failed:
            if KERNEL not in programs(guest) or not await goes_on(guest.link):
                lost = GuestGone(f"{failed.message}; runsc has ended over it", reason="gone")
                _tell(on_lost, lost)
                raise lost from failed
            if on_lost is not None:
                self._launching.hand_over(guest, guest.id, on_lost)
            raise
        except GuestGone as gone:
            _tell(on_lost, gone)
            raise
        guest.link_stays = True
        # Out of the way: whoever goes on under the same name may save again.
        files = self.memory_place(f"{guest.id}.saved")
        os.rename(_image_place(guest), files)
        try:
            write_release(files, find_runsc())
        except ProtocolViolation as error:
            _tell(on_lost, error)
            raise
        return Memory(files, guest.link.new_id(), link=guest.link, told=guest.told)

    async def restore(
        self, id: SandboxId, plan: Plan, memory: Memory, on_lost: Callable[[CloisterError], None]
    ) -> Guest:
        """Build the wall, and have runsc go on in it from memory."""
        if memory.standing is not None:
            guest = await take_over(self._launching, memory, id, on_lost, require_posture)
            if isinstance(guest, GvisorGuest):
                guest.told = _told(memory)
            return guest
        if plan.kernel is None:
            raise RequestError("the plan has no kernel to go on in")
        require_release(memory.files, find_runsc())
        told = _told(memory)
        kernel = restoring(plan.kernel, memory.files, told)
        plan = dataclasses.replace(plan, kernel=kernel)
        begun = await self._launch(id, plan, on_lost, memory)
        begun.told = told
        return begun

    async def _launch(
        self,
        id: SandboxId,
        plan: Plan,
        on_lost: Callable[[CloisterError], None],
        memory: Memory | None = None,
    ) -> GvisorGuest:
        reading, writing = socket.socketpair()
        reading.setblocking(False)
        guest = None
        try:
            try:
                guest = await self._launching.launch(
                    id,
                    plan,
                    on_lost,
                    GvisorGuest,
                    require_posture,
                    log=writing.fileno(),
                    greeting_s=_GREETING_S,
                    memory=memory,
                )
            except GuestGone as error:
                raise _explained(error, reading) from error
            try:
                guest.posture = Posture({**guest.posture.facts, **outside(find_runsc(), guest)})
            except BaseException:
                await asyncio.shield(self._launching.end(guest))
                raise
            # Kept open: its end is the end of the sandbox, and by it runsc is told to save.
            guest.word = reading
            if plan.room.egress:
                _lead_out(guest, reading)
            return guest
        finally:
            writing.close()
            if guest is None or guest.word is None:
                reading.close()

    async def destroy(self, guest: Guest) -> None:
        """End it by the kernel's means: everything of runsc's is in one process namespace."""
        if not isinstance(guest, GvisorGuest):
            raise RequestError("this guest belongs to another runtime")
        self._spare.begin()
        try:
            await self._launching.end(guest)
        finally:
            self._spare.over()

    async def pause(self, guest: Guest, paused: bool) -> None:
        """Stop or continue everything of it, runsc included."""
        await self._launching.pause(guest, paused)

    async def fill_spare(self) -> None:
        """Have what is to be in stock; return when it is there."""
        await self._spare.fill()

    async def end_spare(self) -> None:
        """Have no sandbox in stock; return when there is none."""
        await self._spare.end()

    async def close(self) -> None:
        """End what was begun ahead; the rest the launcher's runtime holds."""
        await self._spare.end()

    def abandon(self) -> None:
        """Nothing is held here that the launcher's runtime does not hold."""


def _told(memory: Memory) -> bytes:
    return memory.told if memory.renewal is None else memory.renewal.told


def _image_place(guest: GvisorGuest) -> str:
    """Return where its memory is written: by the name it was begun under, if that was another."""
    written = () if guest.plan.kernel is None else guest.plan.kernel.written
    if not written:
        raise RequestError("the plan has no place for memory")
    return written[0][1]


def _kernel_policy(policy: Policy) -> Policy:
    """Return the policy with limits for all of runsc, of which the sandbox is a part."""
    limits = policy.limits
    memory = None if limits.memory is None else limits.memory + _OWN_MEMORY_BYTES
    pids = limits.pids * _THREADS_EACH + _OWN_THREADS
    return policy.replace(limits=limits.replace(memory=memory or "unlimited", pids=pids))


def _lead_out(guest: GvisorGuest, word: socket.socket) -> None:
    """Carry what connects inside to the doors of the network around it, and what is refused."""
    if guest.doors is None:
        # Then there is nobody to lead to, and whoever asked for a way out says so.
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        socket.send_fds(word, [_DIAL], [theirs.fileno()])
    refusals = Refusals(guest.doors.refused)
    guest.doors = dataclasses.replace(guest.doors, refused=refusals.detach())
    guest.way_out = WayOut(guest.link, Dialler(ours), refusals)


def _tell(on_lost: Callable[[CloisterError], None] | None, error: CloisterError) -> None:
    if on_lost is not None:
        on_lost(error)


def _explained(error: GuestGone, log: socket.socket) -> CloisterError:
    try:
        said = log.recv(_MAX_LOG).decode("utf-8", "replace").strip()
    except (BlockingIOError, ConnectionResetError):
        said = ""
    if not said:
        runsc = find_runsc()
        said = f"{runsc.path}, {runsc.version}, ended without a word; try `runsc --version`"
    return LaunchFailed(f"runsc did not start: {said}; nothing ran", step="kernel")
