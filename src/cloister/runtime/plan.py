"""Everything the launcher is told about one sandbox: written once, hashed, compared afterwards."""

from __future__ import annotations

import hashlib
import os
import string
from dataclasses import dataclass, replace
from functools import cached_property

from cloister.wire.codec import Writer
from cloister.wire.messages import GENERATION

# What stands for itself in the name of an overlay's directory, and in mount options.
_PLAIN = (string.ascii_letters + string.digits + "._-").encode()


@dataclass(frozen=True, slots=True)
class IdRange:
    """`count` ids from `inside` on are `outside` and up on the host."""

    inside: int
    outside: int
    count: int


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """A value to write into a file of the sandbox's `group`, counted as the layout lists them."""

    group: int
    file: str
    value: str


@dataclass(frozen=True, slots=True)
class Layer:
    """Host directories in the root, the uppermost first; `target` is relative, empty for the root.

    `writable` puts an overlay on the sandbox's own disk above them, for profiles in which somebody
    inside may write there.
    """

    sources: tuple[str, ...]
    target: str
    idmap: bool
    writable: bool

    @property
    def key(self) -> str:
        """The name of the overlay's directory on the disk."""
        return overlay_key(self.target)


def overlay_key(target: str) -> str:
    """Return the name of an overlay's directory on a disk: "%" for the root, "usr%2Flocal"."""
    return "".join(chr(b) if b in _PLAIN else f"%{b:02X}" for b in os.fsencode(target)) or "%"


@dataclass(frozen=True, slots=True)
class DiskPlan:
    """A host directory that holds the sandbox's disk in place of memory.

    `sealed` are earlier disks that it goes on from, the newest first. `durable` is where what is
    synced inside must be on the disk.
    """

    path: str
    sealed: tuple[str, ...]
    idmap: bool
    durable: bool


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory of the root."""

    path: str
    uid: int
    gid: int
    mode: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """A program executed in the guest's place: another kernel, in which a guest then runs.

    What was built as the sandbox's root is `/root` in a root of its own. `shown` are host files in
    it, (name, path), `made` are files written there, (name, content), where a name may have a
    directory of its own, and `written` are host directories it may write to, (name, path).
    """

    argv: tuple[str, ...]
    shown: tuple[tuple[str, str], ...]
    made: tuple[tuple[str, bytes], ...]
    capabilities: int
    written: tuple[tuple[str, str], ...] = ()


class Whole:
    """Owners on the host are those inside, all of them."""


WHOLE = Whole()
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class HostMount:
    """A host directory shown inside; `owner` is ((host uid, shown as), (host gid, shown as))."""

    source: bytes
    target: str
    write: bool
    owner: tuple[Pair, Pair] | Whole | None


@dataclass(frozen=True)
class Room:
    """The part of a plan that all sandboxes of one policy on one host share."""

    hostname: str
    limits: tuple[GroupLimit, ...]
    disk_bytes: int
    inodes: int
    shm_bytes: int
    layers: tuple[Layer, ...]
    links: tuple[tuple[str, str], ...]
    directories: tuple[Directory, ...]
    masks: tuple[str, ...]
    rlimits: tuple[tuple[int, int, int], ...]
    open_files: int
    bounding: int
    guest_capabilities: int
    root_capabilities: int
    allow_ptrace: bool
    deny_set_id_bits: bool
    landlock: bool
    egress: bool

    @cached_property
    def encoded(self) -> bytes:
        """The bytes of this part, made once."""
        w = Writer().bytes(self.hostname.encode())
        w.list(
            self.limits,
            lambda w, limit: (
                w.u8(limit.group).bytes(limit.file.encode()).bytes(limit.value.encode())
            ),
        )
        w.u64(self.disk_bytes).u64(self.inodes).u64(self.shm_bytes)
        w.list(
            self.layers,
            lambda w, layer: (
                w.list(layer.sources, _write_text)
                .bytes(layer.target.encode())
                .flag(layer.idmap)
                .flag(layer.writable)
                .bytes(layer.key.encode())
            ),
        )
        w.list(self.links, lambda w, link: w.bytes(link[0].encode()).bytes(link[1].encode()))
        w.list(
            self.directories,
            lambda w, d: w.bytes(d.path.encode()).u32(d.uid).u32(d.gid).u32(d.mode),
        )
        w.list(self.masks, lambda w, path: w.bytes(path.encode()))
        w.list(self.rlimits, lambda w, limit: w.u32(limit[0]).u64(limit[1]).u64(limit[2]))
        w.u64(self.open_files)
        w.u64(self.bounding).u64(self.guest_capabilities).u64(self.root_capabilities)
        w.flag(self.allow_ptrace).flag(self.deny_set_id_bits).flag(self.landlock).flag(self.egress)
        return w.done()


@dataclass(frozen=True)
class Plan:
    """The whole truth of a launch."""

    room: Room
    uid_map: tuple[IdRange, ...]
    gid_map: tuple[IdRange, ...]
    allow_setgroups: bool
    init_uid: int
    init_gid: int
    mounts: tuple[HostMount, ...]
    disk: DiskPlan | None = None
    kernel: Kernel | None = None
    stream_transport: bool = False
    # ("fail" or "pause", step): a rehearsal of a launch that goes wrong. It can only take away.
    drill: tuple[str, str] | None = None

    @cached_property
    def encoded(self) -> bytes:
        """The bytes the launcher reads."""
        w = Writer().u8(GENERATION).flag(self.stream_transport)
        for ranges in (self.uid_map, self.gid_map):
            w.list(ranges, lambda w, r: w.u32(r.inside).u32(r.outside).u32(r.count))
        w.flag(self.allow_setgroups).u32(self.init_uid).u32(self.init_gid)
        w.list(self.mounts, _write_mount)
        w.flag(self.disk is not None)
        if self.disk is not None:
            w.bytes(os.fsencode(self.disk.path)).list(self.disk.sealed, _write_text)
            w.flag(self.disk.idmap).flag(self.disk.durable)
        w.flag(self.kernel is not None)
        if self.kernel is not None:
            _write_kernel(w, self.kernel)
        mode, step = self.drill or ("", "")
        w.u8({"": 0, "fail": 1, "pause": 2}[mode]).bytes(step.encode())
        return w.done() + self.room.encoded

    def rehearsing(self, mode: str, step: str) -> Plan:
        """Return the plan as a rehearsal: `step` fails, or pauses, instead of being performed."""
        # A step that is performed only where a policy asks for it is asked for.
        room = replace(self.room, egress=True) if step == "egress" else self.room
        return replace(self, room=room, drill=(mode, step))

    @cached_property
    def digest(self) -> str:
        """The name of this plan: what was promised, in one line."""
        return "sha256:" + hashlib.sha256(self.encoded).hexdigest()


def _write_mount(w: Writer, mount: HostMount) -> None:
    w.bytes(mount.source).bytes(mount.target.encode()).flag(mount.write)
    if mount.owner is None:
        w.u8(0)
    elif isinstance(mount.owner, Whole):
        w.u8(2)
    else:
        (host_uid, uid), (host_gid, gid) = mount.owner
        w.u8(1).u32(host_uid).u32(uid).u32(host_gid).u32(gid)


def _write_kernel(w: Writer, kernel: Kernel) -> None:
    w.list(kernel.argv, _write_text)
    w.list(kernel.shown, lambda w, file: w.bytes(file[0].encode()).bytes(os.fsencode(file[1])))
    w.list(kernel.made, lambda w, file: w.bytes(file[0].encode()).bytes(file[1]))
    w.list(kernel.written, lambda w, file: w.bytes(file[0].encode()).bytes(os.fsencode(file[1])))
    w.u64(kernel.capabilities)


def _write_text(w: Writer, path: str) -> None:
    w.bytes(os.fsencode(path))
