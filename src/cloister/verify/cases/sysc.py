"""SYS: system calls that reach the kernel, other namespaces or the host itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from cloister.errors import GuestGone
from cloister.sandbox import Sandbox
from cloister.verify.arena import Arena
from cloister.verify.case import NotHeld, case

_NAMESPACE_FLAGS = """
import threading
FLAGS = {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "network": 0x40000000,
         "ipc": 0x8000000, "uts": 0x4000000, "cgroup": 0x2000000}

def cloned(flags):
    pid = syscall(56, flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)

def cloned3(flags):
    fields = struct.pack("8Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    arguments = ctypes.create_string_buffer(fields)
    pid = syscall(435, arguments, 64)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)

def attempt():
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    answers = {"plain clone": tried(cloned, 0), "plain clone3": tried(cloned3, 0)}
    for name, flag in FLAGS.items():
        answers[f"unshare {name}"] = tried_apart(syscall, 272, flag)
        answers[f"clone {name}"] = tried(cloned, flag)
        answers[f"clone {name}, high bits set"] = tried(cloned, flag | 1 << 40)
        answers[f"clone3 {name}"] = tried(cloned3, flag)
    answers["unshare time"] = tried_apart(syscall, 272, 0x80)
    return answers
"""


@case("SYS-04", "make a namespace of one's own with unshare, clone and clone3", "high")
async def nested_namespaces(arena: Arena) -> None:
    twin = arena.expect_allowed(await arena.attempt_on_host(_NAMESPACE_FLAGS))
    worked = {twin["clone user"], twin["clone3 user"], twin["unshare user"]}
    arena.expect(worked == {"ok"}, f"the same calls do not work on the host: {twin}")
    for profile in ("default", "root", "debug"):
        async with arena.sandbox(profile=profile) as sandbox:
            answers = arena.expect_allowed(await arena.attempt(sandbox, _NAMESPACE_FLAGS))
            arena.expect(answers.pop("plain clone") == "ok", "an ordinary fork does not work")
            arena.expect_each(answers, ("EPERM", "ENOSYS"), profile)


@case("SYS-09", "hide namespace flags from the filter behind clone3's pointer", "high")
async def hidden_flags(arena: Arena) -> None:
    async with arena.sandbox(profile="root") as sandbox:
        answers = arena.expect_allowed(await arena.attempt(sandbox, _NAMESPACE_FLAGS))
        # The probe starts a thread first: libraries must fall back from ENOSYS to clone.
        arena.expect(answers["plain clone"] == "ok", "an ordinary fork does not work")
        hidden = {name: answer for name, answer in answers.items() if "clone3" in name}
        arena.expect_each(hidden, ("ENOSYS",))


_MOUNTS = """
def attempt(own_namespaces):
    if own_namespaces == "yes":
        syscall(272, 0x10000000 | 0x20000)
    os.makedirs("/tmp/a", exist_ok=True)
    def mount(kind, flags=0):
        return tried(syscall, 165, b"none", b"/tmp/a", kind, flags, None)
    kinds = (b"tmpfs", b"proc", b"sysfs", b"cgroup", b"cgroup2", b"debugfs", b"tracefs", b"bpf",
             b"overlay", b"devpts", b"mqueue", b"fuse", b"securityfs", b"binfmt_misc", b"ext4")
    answers = {f"mount {kind.decode()}": mount(kind) for kind in kinds}
    answers["bind"] = tried(syscall, 165, b"/", b"/tmp/a", None, 0x1000, None)
    answers["remount"] = tried(syscall, 165, b"none", b"/proc/sys", None, 0x20 | 0x1000, None)
    answers["share"] = tried(syscall, 165, b"none", b"/", None, 0x100000, None)
    answers["move"] = tried(syscall, 165, b"/proc", b"/tmp/a", None, 0x2000, None)
    answers["umount2"] = tried(syscall, 166, b"/proc/sys", 2)
    answers["pivot_root"] = tried(syscall, 155, b"/tmp", b"/tmp/a")
    answers["open_tree"] = tried(syscall, 428, -100, b"/", 0x8001)
    answers["move_mount"] = tried(syscall, 429, -100, b"/proc", -100, b"/tmp/a", 0)
    answers["fsopen"] = tried(syscall, 430, b"tmpfs", 0)
    answers["fsconfig"] = tried(syscall, 431, 0, 0, None, None, 0)
    answers["fsmount"] = tried(syscall, 432, 0, 0, 0)
    answers["fspick"] = tried(syscall, 433, -100, b"/", 0)
    attributes = ctypes.create_string_buffer(struct.pack("4Q", 0, 1, 0, 0))
    answers["mount_setattr"] = tried(syscall, 442, -100, b"/proc/sys", 0, attributes, 32)
    answers["open_tree_attr"] = tried(syscall, 467, -100, b"/", 1, attributes, 32)
    return answers
"""


@case("SYS-05", "mount, move or change mounts by the old and the new interface", "critical")
async def mount_calls(arena: Arena) -> None:
    await _deny_mounts(arena, lambda name: not name.startswith("mount ") or "tmpfs" in name)


@case("PRC-04", "mount a fresh cgroup, sysfs, proc, debugfs, bpf or overlay filesystem", "critical")
async def mount_kernel_filesystems(arena: Arena) -> None:
    await _deny_mounts(arena, lambda name: name.startswith("mount "))


async def _deny_mounts(arena: Arena, chosen: Callable[[str], bool]) -> None:
    twin = arena.expect_allowed(await arena.attempt_on_host(_MOUNTS, "yes"))
    worked = {twin["mount tmpfs"], twin["fsopen"]}
    arena.expect(worked == {"ok"}, f"a process with its own namespaces cannot mount: {twin}")
    for profile in ("default", "root"):
        async with arena.sandbox(profile=profile) as sandbox:
            answers = arena.expect_allowed(await arena.attempt(sandbox, _MOUNTS, "no"))
            mine = {name: answer for name, answer in answers.items() if chosen(name)}
            arena.expect_each(mine, ("EPERM",), profile)


_JOIN = """
def attempt():
    answers, opened_any = {}, 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            names = os.listdir(f"/proc/{pid}/ns")
        except OSError as error:
            answers[f"{pid} list"] = errno.errorcode[error.errno]
            continue
        for name in names:
            try:
                handle = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
            except OSError as error:
                answers[f"{pid} {name} open"] = errno.errorcode[error.errno]
                continue
            opened_any += 1
            answers[f"{pid} {name}"] = tried(syscall, 308, handle, 0)
            os.close(handle)
        try:
            handle = os.pidfd_open(int(pid))
        except OSError:
            continue
        answers[f"{pid} pidfd"] = tried(syscall, 308, handle, 0x7E020000)
        os.close(handle)
    return {"answers": answers, "opened": opened_any}
"""


@case("SYS-06", "join other namespaces by any handle", "critical")
async def join_namespaces(arena: Arena) -> None:
    for profile in ("default", "root", "debug"):
        async with arena.sandbox(profile=profile) as sandbox:
            value = arena.expect_allowed(await arena.attempt(sandbox, _JOIN))
            arena.expect(value["opened"] > 0, "not even own namespace handles can be opened")
            arena.expect_each(value["answers"], ("EPERM", "EACCES"), profile)


_DANGEROUS = {
    **{"syslog": 103, "vhangup": 153, "acct": 163, "swapon": 167, "swapoff": 168, "iopl": 172},
    **{"ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179, "modify_ldt": 154},
    **{"nfsservctl": 180, "lookup_dcookie": 212, "kexec_load": 246, "add_key": 248, "keyctl": 250},
    **{"request_key": 249, "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303},
    **{"open_by_handle_at": 304, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312},
    **{"finit_module": 313, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323},
    **{"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "pidfd_getfd": 438},
    **{"quotactl_fd": 443, "memfd_secret": 447, "move_pages": 279, "migrate_pages": 256},
    **{"process_madvise": 440, "mbind": 237, "create_module": 174, "fanotify_mark": 301},
}
_CALLS = """
def attempt(*calls):
    answers = {name: tried(syscall, int(number), 0, 0, 0, 0, 0, 0)
               for name, number in (call.split("=") for call in calls)}
    answers["getpid afterwards"] = "ok" if syscall(39) == os.getpid() else "wrong"
    return answers
"""


@case("SYS-07", "use rare calls with a large or dangerous surface in the kernel", "high")
async def dangerous_calls(arena: Arena) -> None:
    calls = [f"{name}={number}" for name, number in _DANGEROUS.items()]
    for profile in ("default", "root"):
        async with arena.sandbox(profile=profile) as sandbox:
            answers = arena.expect_allowed(await arena.attempt(sandbox, _CALLS, *calls))
            arena.expect(answers.pop("getpid afterwards") == "ok", "ordinary calls do not work")
            arena.expect_each(answers, ("EPERM", "ENOSYS"), profile)
    async with arena.sandbox(profile="debug") as sandbox:
        twin = arena.expect_allowed(await arena.attempt(sandbox, _CALLS, "kcmp=312"))
        # gVisor has none to reach.
        reached = "EPERM" if arena.not_linux else "ESRCH"
        arena.expect(twin["kcmp"] == reached, f"the debug profile does not reach kcmp: {twin}")


_MACHINE_CODE = """
import mmap
PATH_OFFSET = 2048
def page(code, path):
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    # Below 2 GiB (MAP_32BIT), private and anonymous: the 32-bit entry takes 32-bit addresses.
    address = libc.mmap(None, 4096, 7, 0x62, -1, 0)
    ctypes.memmove(address, code, len(code))
    ctypes.memmove(address + PATH_OFFSET, path, len(path))
    return address

def run(code, path):
    address = page(code, path)
    function = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, ctypes.c_long)(address)
    return in_child(lambda: os._exit(0 if function(address + PATH_OFFSET, 0o755) == 0 else 1))

# The callee gets (path, mode) in rdi, rsi. 83 is mkdir of x86_64, 39 that of i386.
NATIVE = bytes.fromhex("b853000000" "0f05" "c3")
X32 = bytes.fromhex("b853000040" "0f05" "c3")
I386 = bytes.fromhex("53" "89fb" "89f1" "b827000000" "cd80" "5b" "c3")

def attempt():
    return {name: [run(code, b"/workspace/" + name.encode() + b"\\0"),
                   os.path.exists("/workspace/" + name)]
            for name, code in (("native", NATIVE), ("x32", X32), ("i386", I386))}
"""


@case("SYS-08", "issue calls through the 32-bit entry and the x32 numbers", "critical")
async def foreign_entry(arena: Arena) -> None:
    if os.uname().machine != "x86_64":
        raise NotHeld("the probe is x86_64 machine code; this machine needs its own")
    for profile in ("default", "root", "debug"):
        async with arena.sandbox(profile=profile) as sandbox:
            value = arena.expect_allowed(await arena.attempt(sandbox, _MACHINE_CODE))
            arena.expect(value["native"] == ["exit 0", True], f"the code does not run: {value}")
            arena.expect(value["x32"] == ["SIGSYS", False], f"x32: {value['x32']}")
            # A kernel without 32-bit emulation faults before the filter is asked.
            ends = [["SIGSYS", False], ["SIGSEGV", False]]
            if arena.not_linux:
                # Its kernel knows no such entry: the call fails, and does nothing.
                ends.append(["exit 1", False])
            arena.expect(value["i386"] in ends, f"i386: {value['i386']}")


_SOCKETS = """
def attempt():
    def made(family, kind, protocol=0):
        return tried(lambda: syscall(41, family, kind, protocol))
    allowed = {
        "unix": made(1, 1), "unix datagram": made(1, 2), "tcp": made(2, 1), "udp": made(2, 2, 17),
        "tcp 6": made(10, 1, 6), "route": made(16, 3, 0), "pair": tried(socket.socketpair),
    }
    rare = [*range(3, 10), *range(11, 16), *range(17, 50)]
    denied = {f"{family}, {kind}": made(family, kind) for family in rare for kind in (1, 2, 3, 5)}
    denied |= {f"netlink {protocol}": made(16, 3, protocol) for protocol in range(1, 32)}
    denied |= {"raw icmp": made(2, 3, 1), "raw tcp": made(2, 3, 6), "raw 255": made(2, 3, 255),
               "raw icmp 6": made(10, 3, 58), "ping": made(2, 2, 1),
               "obsolete packet": made(2, 10, 0),
               "obsolete packet, all": made(2, 10, 0x300), "sctp": made(2, 1, 132),
               "mptcp": made(2, 1, 262), "udplite": made(2, 2, 136), "dccp": made(2, 6, 33),
               "family, high bits": made(17 | 1 << 32, 3), "raw, flags": made(2, 3 | 0o2000000, 1)}
    return {"allowed": allowed, "denied": denied}
"""


@case("SYS-10", "open packet, vsock, netlink, crypto, raw and other rare sockets", "high")
async def rare_sockets(arena: Arena) -> None:
    for profile in ("default", "root"):
        async with arena.sandbox(profile=profile) as sandbox:
            value = arena.expect_allowed(await arena.attempt(sandbox, _SOCKETS))
            arena.expect_each(value["allowed"], ("ok",), "ordinary sockets")
            denials = ("EPERM", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT")
            arena.expect_each(value["denied"], denials, profile)


_CLOCKS = """
import time
def attempt():
    year_2001 = ctypes.create_string_buffer(struct.pack("2q", 978307200, 0))
    timex = ctypes.create_string_buffer(struct.pack("Iq", 0x1, 500000) + b"\\0" * 400)
    return {
        "read": tried(time.clock_gettime, 0),
        "settimeofday": tried(syscall, 164, year_2001, None),
        "clock_settime": tried(syscall, 227, 0, year_2001),
        "adjtimex": tried(syscall, 159, timex),
        "clock_adjtime": tried(syscall, 305, 0, timex),
    }
"""
_CLOCK_TOLERANCE_S = 60.0


@case("SYS-11", "set the host's clock", "high")
async def set_clock(arena: Arena) -> None:
    before = time.time() - time.monotonic()
    for profile in ("default", "root"):
        async with arena.sandbox(profile=profile) as sandbox:
            answers = arena.expect_allowed(await arena.attempt(sandbox, _CLOCKS))
            arena.expect(answers.pop("read") == "ok", "the clock cannot even be read")
            arena.expect_each(answers, ("EPERM",), profile)
    moved = abs(time.time() - time.monotonic() - before)
    arena.expect(moved < _CLOCK_TOLERANCE_S, f"the host's clock moved by {moved:.0f} s")


_REBOOT = """
def attempt():
    magics = ((0xFEE1DEAD, 672274793), (0xFEE1DEAD, 85072278))
    commands = {"restart": 0x1234567, "halt": 0xCDEF0123, "power off": 0x4321FEDC,
                "kexec": 0x45584543, "keys": 0x89ABCDEF, "suspend": 0xD000FCE2}
    answers = {f"{name} {second}": tried(syscall, 169, first, second, command, None)
               for first, second in magics for name, command in commands.items()}
    for signal_to_first in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT):
        tried(os.kill, 1, signal_to_first)
    return answers
"""


@case("SYS-14", "restart or power off the host, or stop the first process", "critical")
async def reboot(arena: Arena) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    for profile in ("default", "root"):
        try:
            async with arena.sandbox(profile=profile) as sandbox:
                await _reboot_once(arena, sandbox, profile)
        except GuestGone:
            # Root of a kernel of its own may end that, and nothing else.
            arena.expect(arena.own_kernel and profile == "root", f"{profile}: the sandbox is gone")
    arena.expect(Path("/proc/sys/kernel/random/boot_id").read_text() == boot, "the host restarted")
    async with arena.sandbox() as another:
        result = await another.run("echo still here")
        arena.expect(result.stdout == "still here\n", "no other sandbox starts")


async def _reboot_once(arena: Arena, sandbox: Sandbox, profile: str) -> None:
    answers = arena.expect_allowed(await arena.attempt(sandbox, _REBOOT))
    arena.expect_each(answers, ("EPERM",), profile)
    result = await sandbox.run("echo still here")
    arena.expect(result.stdout == "still here\n", "the sandbox did not survive")
