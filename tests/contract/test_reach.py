"""How many of the kernel interfaces that exploits begin with are in reach behind each wall."""

from __future__ import annotations

from pathlib import Path

from cloister import Sandbox
from cloister.runtime.namespace.rootfs import every_mask

# Each is tried, and told if the kernel answered with anything but a refusal.
PROBE = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
REFUSED = {1, 13, 38, 95, 97, 93, 94, 2, 30, 19}  # EPERM, EACCES, ENOSYS and what is not there
def call(number, *words):
    return lambda: libc.syscall(number, *words) >= 0 or ctypes.get_errno() not in REFUSED
def opens(path):
    def try_it():
        os.close(os.open(path, os.O_RDWR))
        return True
    return try_it
def connects(*words):
    def try_it():
        socket.socket(*words).close()
        return True
    return try_it
TRIED = {
    "user namespaces": call(272, 0x10000000), "nftables": connects(16, 3, 12),
    "bpf": call(321, 0, 0, 0), "io_uring": call(425, 1, 0), "userfaultfd": call(323, 1),
    "keyctl": call(250, 0, -3, 1), "perf": call(298, 0, 0, -1, -1, 0),
    "packet sockets": connects(17, 3, 3), "overlay mounts": call(165, 0, b"/tmp", b"overlay", 0, 0),
    "fuse": opens("/dev/fuse"), "ptrace": call(101, 16, os.getppid(), 0, 0),
    "message queues": call(68, 0, 0o1600), "modprobe path": opens("/proc/sys/kernel/modprobe"),
    "core pattern": opens("/proc/sys/kernel/core_pattern"),
}
for name, try_it in TRIED.items():
    try:
        reached = try_it()
    except OSError as error:
        reached = error.errno not in REFUSED
    if reached: print(name)
"""
# docs/runtimes.md says these: a longer list is a wall that has become weaker. On gVisor both are
# its own kernel's, and none of the host's.
IN_REACH = {"message queues"}
IN_REACH_OF_GVISOR = IN_REACH | {"fuse"}
GVISOR_MAKES_UP = ("gvisor", "proc/cmdline")


async def test_no_more_of_what_exploits_begin_with_is_in_reach_than_is_said(
    sandbox: Sandbox, wall: str
) -> None:
    told = set((await sandbox.run(["python3", "-c", PROBE])).check().stdout.splitlines())
    # What is allowed is reached: the probe can tell.
    assert IN_REACH <= told <= (IN_REACH_OF_GVISOR if wall == "gvisor" else IN_REACH)


# Each that is a directory with something in it, or a file of which a byte can be read.
SHOWN = (
    'for path in "$@"; do if [ -d $path ]; then find $path -mindepth 1; '
    "elif [ -f $path ] && head -c 1 $path > /dev/null 2>&1; then echo $path; fi; done"
)


async def test_what_kernels_tell_of_their_host_is_covered_also_where_the_host_has_none_of_it(
    sandbox: Sandbox, wall: str
) -> None:
    told = await sandbox.run(["sh", "-c", SHOWN, "sh", "/proc/uptime"])
    assert told.stdout == "/proc/uptime\n"
    # The command line of gVisor's kernel is one that it makes up.
    covered = [f"/{path}" for path in every_mask() if (wall, path) != GVISOR_MAKES_UP]
    told = await sandbox.run(["sh", "-c", SHOWN, "sh", *covered])
    assert told.stdout == ""


async def test_no_boot_id_tells_that_sandboxes_are_on_one_host() -> None:
    path = Path("/proc/sys/kernel/random/boot_id")
    seen = [path.read_text()]
    async with (
        Sandbox(runtime="namespace", profile="root") as one,
        Sandbox(runtime="namespace") as other,
    ):
        for sandbox in (one, other):
            seen.append((await sandbox.run(["cat", str(path)])).check().stdout)
        # It stays what it is, and is nobody's to change.
        assert not (await one.run(f"echo x > {path} || umount {path}", user="root")).ok
        assert (await one.run(["cat", str(path)])).stdout == seen[1]
        assert (await one.run(["ls", "-A", "/dev/shm"])).stdout == ""
    assert len(set(seen)) == 3 and {len(each) for each in seen} == {37}
