"""Turns a policy into a plan, on this host, for this user; what cannot be held is an error."""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import CannotEnforce, NotFound, RequestError, Unsupported
from cloister.model import Limits, Mount, MountMode, Profile, User, quote
from cloister.policy import Policy, SecondLayer
from cloister.runtime.ground import Ground, GroundDisk, GroundVolume
from cloister.runtime.namespace import ids, rootfs
from cloister.runtime.namespace.cgroups import Layout, plan_limits
from cloister.runtime.namespace.hidden import hidden_programs
from cloister.runtime.namespace.hints import missing_capabilities
from cloister.runtime.plan import WHOLE, DiskPlan, HostMount, IdRange, Plan, Room

_CAPABILITY_NUMBERS = {
    "chown": 0,
    "dac_override": 1,
    "fowner": 3,
    "fsetid": 4,
    "kill": 5,
    "setgid": 6,
    "setuid": 7,
    "net_bind_service": 10,
    "sys_chroot": 18,
}
# What a package installation needs of root, and no more.
ROOT_CAPABILITIES = sum(1 << number for number in _CAPABILITY_NUMBERS.values())
# What the guest itself needs to start processes as other users, end them and own their terminals.
_GUEST_CAPABILITIES = sum(
    1 << _CAPABILITY_NUMBERS[name]
    for name in ("chown", "dac_override", "fowner", "kill", "setgid", "setuid")
)
_RLIMIT_SIGPENDING, _RLIMIT_MSGQUEUE, _RLIMIT_NICE, _RLIMIT_RTPRIO = 11, 12, 13, 14
# What is so when nobody asks for a number: less than that is no promise broken.
_USUAL_OPEN_FILES = Limits().open_files
_FIXED_RLIMITS = (
    (resource.RLIMIT_MEMLOCK, 64 * 1024),
    (_RLIMIT_MSGQUEUE, 819_200),
    (_RLIMIT_SIGPENDING, 1024),
    (_RLIMIT_NICE, 0),
    (_RLIMIT_RTPRIO, 0),
)


@dataclass(frozen=True, slots=True)
class Identities:
    """The ids of one sandbox, and the first of its range where it has one to give back."""

    uid_map: tuple[IdRange, ...]
    gid_map: tuple[IdRange, ...]
    first: int | None
    init: User
    allow_setgroups: bool


RoomKey = tuple[Policy, bool, bool, tuple[str, ...]]


def room_key(policy: Policy, ground: Ground) -> RoomKey:
    """Return what decides how a room is, of what can change while the host stays as it is."""
    return policy, ground.disk is not None, ground.has_egress, hidden_programs(policy)


def make_room(
    policy: Policy,
    ground: Ground,
    layout: Layout,
    template: Path,
    *,
    init: User,
    single: bool,
    idmap: bool,
) -> Room:
    """Return what all sandboxes of one policy share. `single` is where there is one id only."""
    limits = policy.limits
    root_profile = policy.profile is Profile.ROOT
    user = policy.run_as
    guest = _GUEST_CAPABILITIES | (ROOT_CAPABILITIES if root_profile else 0)
    return Room(
        hostname=policy.hostname,
        limits=plan_limits(layout, limits),
        # Of a disk in memory; one of the store has its limit there.
        disk_bytes=limits.disk or 0,
        inodes=limits.inodes,
        shm_bytes=limits.shm,
        layers=rootfs.layers_of(policy.root, ground, template, idmap=idmap, writable=root_profile),
        links=rootfs.links_of(policy.root),
        directories=rootfs.directories_of(policy.root, init if single else user, init),
        masks=(*rootfs.masks(), *hidden_programs(policy)),
        rlimits=_rlimits(
            limits,
            count_processes=not layout.has("pids"),
            beside_guest=single or user.uid == init.uid,
        ),
        open_files=_open_files(limits),
        bounding=ROOT_CAPABILITIES if root_profile else 0,
        guest_capabilities=0 if single else guest,
        root_capabilities=ROOT_CAPABILITIES if root_profile and not single else 0,
        allow_ptrace=policy.profile is Profile.DEBUG,
        deny_set_id_bits=any(mount.mode is MountMode.WRITE for mount in policy.mounts),
        landlock=policy.second_layer is SecondLayer.LANDLOCK,
        egress=ground.has_egress,
    )


def make_plan(
    policy: Policy, ground: Ground, room: Room, identities: Identities, *, idmap: bool
) -> Plan:
    """Return the plan of one sandbox."""
    user = policy.run_as
    _require_ids(user, identities)
    return Plan(
        room=room,
        uid_map=identities.uid_map,
        gid_map=identities.gid_map,
        allow_setgroups=identities.allow_setgroups,
        init_uid=identities.init.uid,
        init_gid=identities.init.gid,
        mounts=(
            *(
                _host_mount(mount, user, identities, idmap=idmap)
                for mount in policy.mounts
                if mount.mode is not MountMode.COPY
            ),
            *(_volume(volume, idmap=idmap) for volume in ground.volumes),
            *(HostMount(os.fsencode(path), target, False, None) for path, target in ground.files),
        ),
        disk=None if ground.disk is None else _disk(ground.disk, idmap=idmap),
    )


def _disk(disk: GroundDisk, *, idmap: bool) -> DiskPlan:
    return DiskPlan(disk.path, disk.sealed, idmap=idmap, durable=disk.durable)


def _volume(volume: GroundVolume, *, idmap: bool) -> HostMount:
    owner = WHOLE if idmap else None
    return HostMount(os.fsencode(volume.path), volume.target.strip("/"), volume.write, owner)


def _require_ids(user: User, identities: Identities) -> None:
    if ids.inside(identities.uid_map, user.uid) and ids.inside(identities.gid_map, user.gid):
        return
    raise Unsupported(
        f"this host gives the sandbox no id for user {user.uid}:{user.gid}; use one of its own, "
        "or add a range for you to /etc/subuid and /etc/subgid"
    )


def _host_mount(mount: Mount, user: User, identities: Identities, *, idmap: bool) -> HostMount:
    # Python keeps two leading slashes as they are; they mean one here.
    source = "/" + os.path.abspath(mount.source).lstrip("/")
    try:
        real = os.path.realpath(source)
        status = os.stat(source, follow_symlinks=False)
    except FileNotFoundError:
        raise NotFound(
            f"mount source {mount.source} does not exist", what=str(mount.source)
        ) from None
    except PermissionError:
        raise RequestError(f"mount source {mount.source} cannot be read by this user") from None
    except OSError as error:
        raise RequestError(
            f"mount source {mount.source} cannot be used: {error.strerror}"
        ) from None
    # A sandbox that may write to a shared directory may put a link there, and the next sandbox
    # that is given that place would be given what the link points to.
    if real != source:
        raise RequestError(
            f"mount source {mount.source} leads through a symbolic link; "
            f"name the place it points to, {quote(real)}"
        )
    if source == "/":
        raise RequestError(
            "the host's whole root cannot be mounted; name the directory that is needed"
        )
    owner = None
    if idmap:
        uid, gid = (
            ids.outside(identities.uid_map, user.uid),
            ids.outside(identities.gid_map, user.gid),
        )
        if uid is not None and gid is not None:
            owner = ((status.st_uid, uid), (status.st_gid, gid))
    write = mount.mode is MountMode.WRITE
    return HostMount(os.fsencode(source), str(mount.target).strip("/"), write, owner)


def _core_limit() -> int:
    """Return the limit under which the kernel makes no core dump.

    0 prevents files. Where the host's pattern is a program, the kernel starts it all the same,
    as root and outside, unless the limit is exactly 1.
    """
    return 1 if Path("/proc/sys/kernel/core_pattern").read_text().startswith("|") else 0


def _rlimits(
    limits: Limits, *, count_processes: bool, beside_guest: bool
) -> tuple[tuple[int, int, int], ...]:
    # The guest holds a few descriptors for each thing it does; programs get `open_files`.
    most = max(_open_files(limits), min(_USUAL_OPEN_FILES, _highest(resource.RLIMIT_NOFILE)))
    core = _core_limit()
    rlimits = [
        (resource.RLIMIT_CORE, core, core),
        (resource.RLIMIT_NOFILE, most, most),
        *(
            (number, least, least)
            for number, value in _FIXED_RLIMITS
            # Who was given less passes that on.
            for least in (min(value, _highest(number)),)
        ),
    ]
    if count_processes:
        # Without a pids controller: since Linux 5.14 this counts per user namespace, and per user
        # in it. The guest counts where programs are of its own user; where they are not, the kernel
        # looks before it adds the one that becomes the user, so one more gets through.
        wanted = limits.pids + 1 if beside_guest else max(limits.pids - 1, 1)
        most_processes = min(wanted, _highest(resource.RLIMIT_NPROC))
        rlimits.append((resource.RLIMIT_NPROC, most_processes, most_processes))
    return tuple(rlimits)


def _highest(number: int) -> int:
    """Return up to where this process may raise a resource limit."""
    hard = resource.getrlimit(number)[1]
    return sys.maxsize if hard == resource.RLIM_INFINITY or _may_raise() else hard


def _may_raise() -> bool:
    return os.geteuid() == 0 and not missing_capabilities("SYS_RESOURCE")


def _open_files(limits: Limits) -> int:
    """Return how many files a program may open: it is a bound, and what we may is one before it."""
    wanted, highest = limits.open_files, _highest(resource.RLIMIT_NOFILE)
    if wanted > max(highest, _USUAL_OPEN_FILES):
        raise CannotEnforce(
            f"open_files = {wanted} cannot be given here",
            limit="open_files",
            why=f"this process may have {highest} open files itself",
            enable=f"raise that (ulimit -Hn {wanted}, in a container --ulimit nofile={wanted}), "
            f"or say open_files = {highest}",
        )
    return min(wanted, highest)
