"""PRC: what /proc, /sys and /dev show of the host, and what they let a program change."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cloister.model import Mount
from cloister.verify.arena import Arena
from cloister.verify.case import case

_WRITE_SETTINGS = """
def attempt():
    answers = {}
    for folder, _, names in os.walk("/proc/sys"):
        for name in names:
            answers[f"{folder}/{name}"] = written(f"{folder}/{name}")
    for path in ("/proc/sysrq-trigger", "/sys/kernel/uevent_helper",
                 "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe",
                 "/proc/sys/fs/binfmt_misc/register", "/proc/mtrr",
                 "/proc/sys/vm/drop_caches", "/proc/irq/default_smp_affinity", "/proc/timer_list",
                 "/sys/kernel/mm/ksm/run", "/proc/acpi/wakeup", "/proc/scsi/scsi"):
        answers[path] = written(path)
    return {"own": written("/proc/self/comm"), "answers": answers}
"""


@case("PRC-01", "change the host's kernel settings through /proc and /sys", "critical")
async def kernel_settings(arena: Arena) -> None:
    before = _host_settings()
    for profile in ("default", "root", "debug"):
        async with arena.sandbox(profile=profile) as sandbox:
            value = arena.expect_allowed(await arena.attempt(sandbox, _WRITE_SETTINGS))
            arena.expect(value["own"] == "ok", "not even a file of its own opens for writing")
            arena.expect(len(value["answers"]) > 20, f"too little was tried: {value}")
            errors = {"EACCES", "EROFS", "ENOENT", "EPERM", "ENOTDIR", "masked"}
            if arena.not_linux and profile == "root":
                # Settings of its own kernel: what counts is that the host's are as they were.
                errors.add("ok")
            arena.expect_each(value["answers"], errors, profile)
    arena.expect(_host_settings() == before, "a setting of the host's kernel has changed")


def _host_settings() -> dict[str, bytes]:
    """Those that are the host's alone and do not change by themselves."""
    names = ("hostname", "msgmax", "msgmnb", "msgmni", "sem", "shmall", "shmmax", "shmmni")
    paths = [Path("/proc/sys/kernel", name) for name in (*names, "core_pattern", "modprobe")]
    return {str(path): path.read_bytes() for path in paths if path.exists()}


_READ_KERNEL = """
def attempt():
    paths = ["/proc/" + name for name in (
        "kcore", "kallsyms", "kmsg", "keys", "key-users", "timer_list", "sched_debug", "interrupts",
        "acpi", "scsi", "latency_stats", "slabinfo", "vmallocinfo", "kpagecount", "kpageflags",
        "kpagecgroup", "iomem", "ioports", "bus", "irq", "driver", "fs", "mtrr", "cmdline",
        "softirqs", "zoneinfo", "swaps", "schedstat", "pressure", "sysrq-trigger", "modules",
        "dynamic_debug", "asound", "timer_stats", "self/pagemap", "1/stack", "self/stack")]
    paths += ["/dev/kmsg", "/dev/mem", "/dev/port", "/sys/firmware", "/sys/kernel/debug",
              "/sys/kernel/tracing", "/sys/kernel/security", "/sys/kernel/vmcoreinfo",
              "/sys/module", "/sys/class", "/sys/devices", "/sys/fs/bpf", "/sys/hypervisor"]
    return {"own": shown("/proc/uptime"), "answers": {path: shown(path) for path in paths}}
"""
# Read without a secret in them: addresses are zero and page maps hold no frame numbers for those
# without CAP_SYS_ADMIN in the host's namespace; key-users lists ids of this namespace only, and
# the others are counts of the whole machine.
_RESIDUAL_READS = (
    *("/proc/iomem", "/proc/ioports", "/proc/self/pagemap", "/proc/modules"),
    *("/proc/softirqs", "/proc/swaps", "/proc/zoneinfo", "/proc/schedstat", "/proc/key-users"),
)


@case("PRC-02", "read kernel memory, symbols, logs, keys and hardware tables", "high")
async def kernel_tables(arena: Arena) -> None:
    outside = arena.expect_allowed(await arena.attempt_on_host(_READ_KERNEL))["answers"]
    visible = [path for path, answer in outside.items() if answer.startswith("shows")]
    arena.expect(len(visible) > 5, f"the reader sees little even on the host: {visible}")
    for profile in ("default", "root"):
        async with arena.sandbox(profile=profile) as sandbox:
            value = arena.expect_allowed(await arena.attempt(sandbox, _READ_KERNEL))
            arena.expect(value["own"].startswith("shows"), "not even /proc/uptime can be read")
            answers = {k: v for k, v in value["answers"].items() if k not in _RESIDUAL_READS}
            if arena.not_linux:
                # One that it makes up, the same everywhere.
                arena.expect(answers.pop("/proc/cmdline") != outside["/proc/cmdline"], "cmdline")
            arena.expect_each(answers, ("EACCES", "ENOENT", "EPERM", "empty"), profile)
            zeros = await sandbox.run("grep -vE '^ *0+-0+ ' /proc/iomem /proc/ioports | head -3")
            arena.expect(not zeros.stdout, f"physical addresses are shown: {zeros.stdout}")


_CGROUPS = """
def attempt():
    kinds = [line.split(" - ")[1].split()[0] for line in open("/proc/self/mountinfo")]
    answers = {}
    for folder in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/cgroup"):
        for name in ("release_agent", "notify_on_release", "cgroup.procs", "memory.max",
                     "memory.limit_in_bytes", "pids.max", "cgroup.subtree_control"):
            answers[f"{folder}/{name}"] = written(f"{folder}/{name}")
        answers[f"{folder}/new"] = tried(os.mkdir, f"{folder}/new")
    def moved(pid):
        # Root may open it for writing, as it may any file; only the write tells.
        with open(f"/proc/{pid}/cgroup", "wb", 0) as file:
            file.write(b"0::/")
    answers["/proc/self/cgroup"] = tried(moved, "self")
    answers["/proc/1/cgroup"] = tried(moved, 1)
    return {"kinds": kinds, "answers": answers}
"""


@case("PRC-03", "reach control groups: release_agent, own limits, a parent group", "critical")
async def control_groups(arena: Arena) -> None:
    outside = arena.expect_allowed(await arena.attempt_on_host(_CGROUPS))
    arena.expect(any("cgroup" in kind for kind in outside["kinds"]), "the host shows no cgroups")
    for profile in ("default", "root"):
        async with arena.sandbox(profile=profile) as sandbox:
            value = arena.expect_allowed(await arena.attempt(sandbox, _CGROUPS))
            arena.expect("proc" in value["kinds"], "the mount table cannot be read")
            groups = [kind for kind in value["kinds"] if "cgroup" in kind]
            # gVisor has none of the host's: these are the guest's, covered by something else.
            own = ["cgroup", "cgroup"] if arena.not_linux else []
            arena.expect(groups == own, f"mounted inside: {groups}")
            errors = ("ENOENT", "EACCES", "EROFS", "EPERM", "EINVAL", "EIO")
            arena.expect_each(value["answers"], errors, profile)


_FIRST = """
def attempt(pid):
    pid = pid.replace("parent", str(os.getppid()))
    answers = {}
    for name in ("mem", "environ", "maps", "smaps", "auxv", "syscall", "stack", "wchan_", "pagemap",
                 "personality", "io", "map_files", "fd", "fdinfo", "clear_refs", "numa_maps"):
        path = f"/proc/{pid}/{name}"
        if os.path.lexists(path):
            answers[name] = shown(path)
            if name in ("mem", "clear_refs"):
                answers[name + ", writing"] = written(path)
    for name in ("root", "cwd", "exe", "ns/net", "ns/user", "fd/0", "fd/3"):
        path = f"/proc/{pid}/{name}"
        answers[name + ", reading the link"] = tried(os.readlink, path)
        answers[name + ", following it"] = tried(os.stat, path)
    return answers
"""
# With nothing in it for others: an empty listing or file, or one that is not there.
_DENIED = ("EACCES", "EPERM", "ENOENT", "empty")


# What gVisor shows of everybody. There is nothing in the guest's environment, AGT-03 asks what its
# descriptors can be used for, and the rest are addresses.
_SHOWN = ("auxv", "environ", "fd", "maps", "smaps", "ns/", "io")


@case("PRC-05", "read or write memory, environment, files and root of the guest", "critical")
async def guest_process(arena: Arena) -> None:
    for profile in ("default", "root", "debug"):
        async with arena.sandbox(profile=profile) as sandbox:
            own = arena.expect_allowed(await arena.attempt(sandbox, _FIRST, "self"))
            wanted = ["environ", "maps", "fd"]
            if not arena.not_linux:
                # gVisor has neither of these, for nobody.
                wanted += ["mem, writing", "root, following it"]
            works = {name: own[name] for name in wanted}
            arena.expect_each(works, ("ok", *(w for w in works.values() if "shows" in w)), "own")
            for pid in ("1", "parent"):
                answers = arena.expect_allowed(await arena.attempt(sandbox, _FIRST, pid))
                if arena.not_linux:
                    shown = {name for name in answers if name.startswith(_SHOWN)}
                    answers = {name: answers[name] for name in answers.keys() - shown}
                arena.expect_each(answers, _DENIED, f"{profile}, process {pid}")


_MAGIC_LINKS = """
def attempt(flag):
    top = os.stat("/")
    outside, followed = [], 0
    def look(path):
        nonlocal followed
        try:
            found = os.stat(path)
        except OSError:
            return
        followed += 1
        if path.endswith("root") and (found.st_dev, found.st_ino) != (top.st_dev, top.st_ino):
            outside.append(path)
        for up in range(8):
            if os.path.lexists(path + "/.." * up + flag):
                outside.append(path + "/.." * up)
    for pid in [*filter(str.isdigit, os.listdir("/proc")), "self", "thread-self"]:
        look(f"/proc/{pid}/root")
        look(f"/proc/{pid}/cwd")
        for kind in ("task", "map_files", "fd"):
            try:
                names = os.listdir(f"/proc/{pid}/{kind}")
            except OSError:
                continue
            for name in names:
                look(f"/proc/{pid}/{kind}/{name}")
                look(f"/proc/{pid}/{kind}/{name}/root")
                look(f"/proc/{pid}/{kind}/{name}/cwd")
    return {"outside": outside, "followed": followed}
"""


@case("PRC-06", "walk out through the magic links of /proc", "critical")
async def magic_links(arena: Arena) -> None:
    flag = str(arena.canary.flag)
    twin = arena.expect_allowed(await arena.attempt_on_host(_MAGIC_LINKS, flag))
    arena.expect(bool(twin["outside"]), "the walk does not find the flag even on the host")
    for profile in ("default", "root", "debug"):
        async with arena.sandbox(profile=profile) as sandbox:
            value = arena.expect_allowed(await arena.attempt(sandbox, _MAGIC_LINKS, flag))
            arena.expect(value["followed"] > 2, "not even own links can be followed")
            arena.expect(not value["outside"], f"{profile}: {value['outside']}")


_DEVICES = """
def attempt(folder):
    def made(name, kind, major, minor):
        def make():
            os.mknod(f"/workspace/{name}", kind | 0o666, os.makedev(major, minor))
        return tried(make)
    allowed = {"pipe": made("pipe", stat.S_IFIFO, 0, 0), "null": opened("/dev/null", os.O_RDWR)}
    c, b = stat.S_IFCHR, stat.S_IFBLK
    denied = {"mem": made("mem", c, 1, 1), "kmsg": made("kmsg", c, 1, 11),
              "null": made("n", c, 1, 3), "sda": made("sda", b, 8, 0),
              "kvm": made("kvm", c, 10, 232), "fuse": made("fuse", c, 10, 229),
              "tun": made("tun", c, 10, 200), "loop": made("loop", b, 7, 0),
              "vda": made("vda", b, 253, 0), "whiteout": made("w", c, 0, 0),
              "mem, high bits": tried(syscall, 133, b"/workspace/h", c | 0o666 | 1 << 33, 257)}
    for name in os.listdir(folder):
        denied[f"given {name}"] = opened(f"{folder}/{name}", os.O_RDWR)
    return {"allowed": allowed, "denied": denied}
"""


@case("PRC-07", "make device nodes, and open nodes that came with a directory", "critical")
async def device_nodes(arena: Arena) -> None:
    shared = arena.canary.directory / "nodes"
    shared.mkdir(mode=0o755)
    if os.geteuid() == 0:
        # Harmless devices: that the host opens them shows that the nodes are real.
        for name, minor in (("null", 3), ("zero", 5)):
            os.mknod(shared / name, stat.S_IFCHR | 0o666, os.makedev(1, minor))
            (shared / name).chmod(0o666)
            os.close(os.open(shared / name, os.O_RDWR))
    modes = ("read",) if await arena.is_host_read_only(shared) else ("read", "write")
    for profile in ("default", "root"):
        for mode in modes:
            mounts = [Mount(shared, "/nodes", mode)]
            async with arena.sandbox(profile=profile, mounts=mounts) as sandbox:
                value = arena.expect_allowed(await arena.attempt(sandbox, _DEVICES, "/nodes"))
                arena.expect_each(value["allowed"], ("ok",), "what everybody may")
                denied = value["denied"]
                arena.expect_each(denied, ("EPERM", "EACCES", "EROFS"), f"{profile}, {mode}")


_LIST_DEVICES = """
def attempt():
    found = {}
    for folder, folders, names in os.walk("/dev"):
        for name in folders + names:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            kind = stat.S_IFMT(status.st_mode)
            number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
            device = kind in (stat.S_IFCHR, stat.S_IFBLK)
            found[path] = number if device else oct(kind)
    return {"found": found, "works": opened("/dev/zero"), "make": tried(os.mkdir, "/dev/new")}
"""
_ALLOWED_DEVICES = {
    **{"/dev/null": "1:3", "/dev/zero": "1:5", "/dev/full": "1:7", "/dev/random": "1:8"},
    **{"/dev/urandom": "1:9", "/dev/tty": "5:0", "/dev/pts/ptmx": "5:2"},
    **dict.fromkeys(("/dev/ptmx", "/dev/fd", "/dev/stdin", "/dev/stdout"), "0o120000"),
    **dict.fromkeys(("/dev/stderr", "/dev/core"), "0o120000"),
    **{f"/dev/{name}": "0o40000" for name in ("pts", "shm")},
}


# The guest's own files, and two devices that gVisor makes up: none is of the host.
_GVISOR_DEVICES = {
    **dict.fromkeys(("/dev/net", "/dev/groups", "/dev/cloister"), "0o40000"),
    **dict.fromkeys(("/dev/cell", "/dev/cloister/renewal"), "0o100000"),
    **{"/dev/fuse": "10:229", "/dev/net/tun": "10:200"},
}


@case("PRC-08", "find a device beyond the few that every program needs", "critical")
async def device_list(arena: Arena) -> None:
    for profile in ("default", "root", "debug"):
        async with arena.sandbox(profile=profile) as sandbox:
            value = arena.expect_allowed(await arena.attempt(sandbox, _LIST_DEVICES))
            arena.expect(value["works"] == "ok", "not even /dev/zero opens")
            known = {**_ALLOWED_DEVICES, **(_GVISOR_DEVICES if arena.not_linux else {})}
            strange = {k: v for k, v in value["found"].items() if known.get(k) != v}
            arena.expect(not strange, f"in /dev there is {strange}")
            closed = value["make"] == "EROFS"
            if arena.not_linux:
                # A tree of its own memory, in which the sandbox's own root may make directories.
                closed = value["make"] == "EACCES" or profile == "root"
            arena.expect(closed, f"/dev can be written to: {value['make']}")
