"""LCH, continued: what a launch says about the host, and as whom and how programs begin."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

from cloister.errors import CloisterError
from cloister.runtime.namespace.instance import runtime_directory
from cloister.sandbox import Sandbox
from cloister.verify.arena import PYTHON, Arena
from cloister.verify.case import NotHeld, case

_CRASH = """
import resource
def attempt(name):
    libc.prctl(15, name.encode(), 0, 0, 0)
    def raised():
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (-1, -1))
        except ValueError as error:
            raise OSError(errno.EPERM, str(error))
    return {
        "limit": resource.getrlimit(resource.RLIMIT_CORE),
        "raise": tried(raised),
        "crash": in_child(os.abort),
        "crash, dumpable": in_child(lambda: (syscall(157, 4, 1, 0, 0, 0), os.abort())),
        "files": [name for name in os.listdir(".") if "core" in name],
    }
"""
_LOWER = """
import resource
def attempt():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return resource.getrlimit(resource.RLIMIT_CORE)
"""


@case("LCH-10", "crash with a crafted name, to leave a core or start a handler on the host", "high")
async def core_dump(arena: Arena) -> None:
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    async with arena.sandbox(profile="root") as sandbox:
        name = f"|{arena.canary.directory}"[:15]
        value = arena.expect_allowed(await arena.attempt(sandbox, _CRASH, name))
        crashes = (value["crash"], value["crash, dumpable"])
        arena.expect(crashes == ("SIGABRT", "SIGABRT"), f"nothing crashed: {value}")
        # Where a handler is kept away the answer is yes and nothing changes.
        raised = value["raise"] == "EPERM" or pattern.startswith("|")
        arena.expect(raised, f"the core limit can be raised: {value}")
        arena.expect(not value["files"], f"a core file was written: {value['files']}")
        arena.expect(max(value["limit"]) <= 1, f"the core limit is {value['limit']}")
        if pattern.startswith("|"):
            # A limit of 0 stops files only; the kernel starts a handler unless the limit is 1.
            lowered = await arena.attempt(sandbox, _LOWER)
            arena.expect(
                value["limit"] == [1, 1] and lowered.value in (None, [1, 1]),
                f"this host gives core dumps to a handler ({pattern.split()[0]}), which a crash "
                "inside starts; set kernel.core_pattern to a file name",
            )


_IDENTITY = """
def attempt():
    texts = {}
    for path in ("/proc/self/mountinfo", "/proc/cmdline", "/etc/machine-id", "/etc/hostname",
                 "/proc/sys/kernel/hostname", "/proc/net/arp", "/proc/net/dev", "/proc/net/route",
                 "/etc/passwd", "/etc/hosts", "/etc/resolv.conf", "/proc/version_signature",
                 "/sys/class/dmi/id/product_uuid", "/sys/class/dmi/id/product_serial",
                 "/var/lib/dbus/machine-id", "/proc/self/cgroup", "/proc/1/cmdline", "/etc/fstab",
                 "/proc/1/cgroup", "/proc/self/environ", "/proc/mounts", "/proc/partitions"):
        try:
            texts[path] = open(path, errors="replace").read()
        except OSError:
            continue
    for folder in ("/sys/class/net", "/etc/ssh", "/var/log", "/home", "/root", "/run", "/tmp"):
        try:
            texts[folder] = " ".join(os.listdir(folder))
        except OSError:
            continue
    texts["uname"] = " ".join(os.uname()[1:2])
    return texts
"""


@case("LCH-11", "learn which host this is: names, serials, paths, addresses, neighbours", "low")
async def host_identity(arena: Arena) -> None:
    outside = arena.expect_allowed(await arena.attempt_on_host(_IDENTITY))
    marks = _host_marks(arena)
    arena.expect(marks["host name"] in outside["uname"], "the search does not see the host's name")
    for profile in ("default", "root"):
        async with arena.sandbox(profile=profile) as sandbox:
            texts = arena.expect_allowed(await arena.attempt(sandbox, _IDENTITY))
            for what, mark in marks.items():
                word = re.compile(rf"(?<![\w-]){re.escape(mark)}(?![\w-])")
                places = [path for path, text in texts.items() if word.search(text)]
                arena.expect(not places, f"the {what} is told by {', '.join(places)}")
            shown = texts.get("/proc/cmdline", "").strip()
            if arena.not_linux:
                # It makes one up, the same everywhere.
                shown = shown if shown == outside["/proc/cmdline"].strip() else ""
            arena.expect(not shown, "the kernel's command line is shown")


def _host_marks(arena: Arena) -> dict[str, str]:
    """Return strings that name this host and must not be seen inside."""
    marks = {
        "host name": socket.gethostname(),
        "canary's path": arena.canary.path_token,
        "neighbour's id": arena.canary.neighbour.id,
        "owner's directory": f"{runtime_directory()}/{os.getpid()}",
        "owner's working directory": os.getcwd(),
    }
    for what, path in (("machine id", "/etc/machine-id"), ("boot line", "/proc/cmdline")):
        if Path(path).exists() and (text := Path(path).read_text().strip()):
            marks[what] = text
    for address in Path("/sys/class/net").glob("*/address"):
        text = address.read_text().strip()
        if text.strip("0:"):
            marks[f"address of {address.parent.name}"] = text
    return {what: mark for what, mark in marks.items() if len(mark) > 1}


_WHO = """
def attempt():
    status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
    return {"ids": os.getresuid() + os.getresgid(), "groups": status["Groups"].split()}
"""
_EVIL = "evil:x:0:0::/:/bin/sh\nuser:x:0:0::/:/bin/sh\nroot:x:1000:1000::/:/bin/sh\n"
_IMPOSSIBLE: tuple[str | int, ...] = (
    *(-1, 4294967295, 70_000, 65_536, 2**31, "0:0\nroot", "4294967295", "evil", "", "0:", ":0"),
    *("1000:-1", "1000:70000", "+0", " 0", "0x0", "root\0"),
)


@case("LCH-12", "run as a user who does not exist, is not mapped, or was renamed inside", "high")
async def impossible_user(arena: Arena) -> None:
    async with arena.sandbox(profile="root") as sandbox:
        await sandbox.files.write("/etc/passwd", _EVIL, user=0)
        await sandbox.files.write("/etc/group", "root:x:0:user,evil\nadm:x:4:user\n", user=0)
        known: tuple[tuple[str | int, int], ...] = (("root", 0), (0, 0), ("0:0", 0))
        if sandbox.plan.uid_map[0].count > 1:
            known += (("user", 1000), (1000, 1000), ("1000:1000", 1000), ("nobody", 65_534))
        for user, number in known:
            who = arena.expect_allowed(await arena.attempt(sandbox, _WHO, user=user))
            arena.expect(who["ids"] == [number] * 6, f"{user} became {who['ids']}")
            arena.expect(not who["groups"], f"{user} is in groups {who['groups']}")
        for impossible in _IMPOSSIBLE:
            try:
                attempt = await arena.attempt(sandbox, _WHO, user=impossible)
            except CloisterError:
                continue
            raise NotHeld(f"user {impossible!r} was accepted and became {attempt}")
        _require_no_host_groups(sandbox)
    async with arena.sandbox() as sandbox:
        try:
            attempt = await arena.attempt(sandbox, _WHO, user=0)
        except CloisterError:
            return
        ids = attempt.value["ids"]
        arena.expect(ids == [0] * 6, f"uid 0 became {ids}")


def _require_no_host_groups(sandbox: Sandbox) -> None:
    own = range(65_536)
    for pid in sandbox.host_pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, text = line.partition(":")
            if name in ("Uid", "Gid", "Groups"):
                low = [number for number in map(int, text.split()) if number in own]
                if low and os.geteuid() == 0:
                    raise NotHeld(f"a process inside has the host's {name} {low}")


_ODD_OWNER = """
import asyncio, json, os, signal, sys
from cloister import Sandbox

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
os.umask(0)
os.setpriority(os.PRIO_PROCESS, 0, max(7, os.getpriority(os.PRIO_PROCESS, 0)))

def read(pid):
    return open(f"/proc/{pid}/status").read() + open(f"/proc/{pid}/stat").read()

async def look():
    async with Sandbox(**json.loads(sys.argv[1])) as sandbox:
        signals = {}
        for name in ("HUP", "PIPE", "TERM", "USR1"):
            result = await sandbox.run(["/bin/sh", "-c", f"kill -{name} $$; echo stayed"])
            signals[name] = result.signal
        tools = await sandbox.run(["/bin/sh", "-c", "umask; /bin/sh -c 'exit 9'; echo $?; nice"])
        status = await sandbox.run(["/bin/cat", "/proc/self/status", "/proc/self/stat"])
        return signals, tools.stdout.split(), status.stdout, [read(p) for p in sandbox.host_pids]

signals, said, status, host = asyncio.run(look())
told = {"signals": signals, "said": said, "status": status, "host": host, "owner": read("self")}
print(json.dumps(told))
"""
_NUMBERS = {name: signal.Signals[f"SIG{name}"].value for name in ("HUP", "PIPE", "TERM", "USR1")}


@case("LCH-13", "inherit odd signals, file mode mask or priority from the owner", "low")
async def odd_owner(arena: Arena) -> None:
    python = sys.executable if os.access(sys.executable, os.X_OK) else PYTHON
    settings = {} if arena.runtime is None else {"runtime": arena.runtime}
    done = await asyncio.to_thread(
        subprocess.run,
        [python, "-c", _ODD_OWNER, json.dumps(settings)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    arena.expect(done.returncode == 0, f"the odd owner failed: {done.stderr[-300:]}")
    told = json.loads(done.stdout)
    owner = _dispositions(told["owner"])
    odd = int(owner["SigIgn"], 16) and int(owner["SigBlk"], 16) and int(owner["nice"]) >= 7
    arena.expect(bool(odd) and owner["Umask"] == "0000", f"the owner is not odd: {owner}")
    # An ordinary user who is nice cannot be less so again, and nor can what he starts.
    nice = "0" if os.geteuid() == 0 else owner["nice"]
    arena.expect(told["signals"] == _NUMBERS, f"a signal did not end: {told['signals']}")
    # gVisor keeps a number of its own, and runs with that of its processes on the host.
    said = ["0022", "9", "0" if arena.own_kernel else nice]
    arena.expect(told["said"] == said, f"inside there is {told['said']}, not {said}")
    hosts = [_dispositions(text)["nice"] for text in told["host"]]
    arena.expect(set(hosts) == {nice}, f"on the host its processes are nice {hosts}, not {nice}")
    if arena.own_kernel:
        return
    plain = {"SigIgn": "0" * 16, "SigBlk": "0" * 16, "Umask": "0022", "nice": nice}
    wrong = {
        name: value for name, value in _dispositions(told["status"]).items() if plain[name] != value
    }
    arena.expect(not wrong, f"inside there is {wrong}")


def _dispositions(text: str) -> dict[str, str]:
    *status, stat = text.strip().splitlines()
    fields = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    found = {name: fields[name].strip() for name in ("SigIgn", "SigBlk", "Umask")}
    return {**found, "nice": stat.rpartition(")")[2].split()[16]}
