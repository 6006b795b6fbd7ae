"""Runs the command line as a user does, piped or on a terminal, whole or with something missing."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cloister
from cloister.verify.cases.started import in_time

_PACKAGE = str(Path(cloister.__file__).parents[1])
_MAIN = """
import runpy, sys
sys.path.append(sys.argv[1])
del sys.argv[1]
runpy.run_module("cloister", run_name="__main__", alter_sys=False)
"""
# Put before the command line: what is taken away stays away from everything it starts.
_TAKE_AWAY = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)

def must(answer):
    if answer != 0:
        number = ctypes.get_errno()
        sys.stderr.write("handicap: " + os.strerror(number))
        sys.exit(99)

def without_call(number, errno):
    if os.geteuid() != 0:
        must(libc.prctl(38, 1, 0, 0, 0))
    load, equal, give = 0x20, 0x15, 0x06
    lines = [(load, 0, 0, 0), (equal, 0, 1, number), (give, 0, 0, 0x50000 | errno),
             (give, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = struct.pack("HxxxxxxQ", len(lines), ctypes.addressof(code))
    must(libc.prctl(22, 2, program, 0, 0))

def without_user_namespaces():
    # Counted per user namespace: in one of our own the number can be ours to set.
    uid, gid = os.geteuid(), os.getegid()
    must(libc.unshare(0x10000000))
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")

def without_groups():
    if os.geteuid() != 0:
        uid, gid = os.geteuid(), os.getegid()
        must(libc.unshare(0x10000000))
        with open("/proc/self/setgroups", "w") as file:
            file.write("deny")
        with open("/proc/self/uid_map", "w") as file:
            file.write(f"{uid} {uid} 1")
    must(libc.unshare(0x20000))
    must(libc.mount(b"none", b"/", None, 0x44000, None))
    must(libc.mount(b"none", b"/sys/fs/cgroup", b"tmpfs", 0, None))
"""


@dataclass(frozen=True, slots=True)
class Said:
    """How the command line ended, and what it printed."""

    code: int
    stdout: bytes
    stderr: bytes


async def command_line(*arguments: str, without: str = "") -> Said:
    """Run `cloister` with its output piped; `without` is a call of what is taken away before."""
    source = f"{_TAKE_AWAY}\n{without}\n{_MAIN}" if without else _MAIN
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", source, _PACKAGE, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    stdout, stderr = await in_time("the command line", process.communicate())
    return Said(process.returncode or 0, stdout, stderr)


async def command_line_on_terminal(*arguments: str) -> Said:
    """Run `cloister` on a terminal; all it writes there is in `stdout`."""
    ours, theirs = os.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
        # A terminal adds returns to lines and echoes; what is looked for must come from us alone.
        settings = termios.tcgetattr(theirs)
        settings[1] &= ~termios.OPOST
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _MAIN, _PACKAGE, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        shown = await in_time("the command line", asyncio.to_thread(_read_all, ours))
        code = await in_time("the command line", asyncio.to_thread(process.wait))
    finally:
        os.close(ours)
    return Said(code, shown, b"")


def _read_all(fd: int) -> bytes:
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(fd, 65_536)
        except OSError:
            # How a terminal says that its last user has gone.
            return b"".join(parts)
        if not part:
            return b"".join(parts)
        parts.append(part)


def lines_of(data: bytes) -> Sequence[str]:
    """Return printed lines as text."""
    return data.decode("utf-8", "replace").splitlines()
