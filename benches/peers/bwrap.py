"""bubblewrap: namespaces only, no limits, no system call filter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from benches.peers.peer import find_program, run_command

# Every namespace, the host's /usr read-only, and the /proc, /dev and /tmp that most programs
# need. Fewer walls than ours: no cgroup, no seccomp, no writable root, the caller's own id.
FLAGS = [
    *("--unshare-all", "--die-with-parent", "--new-session"),
    *("--clearenv", "--setenv", "PATH", "/usr/bin"),
    *("--ro-bind", "/usr", "/usr"),
    *("--symlink", "usr/bin", "/bin", "--symlink", "usr/sbin", "/sbin"),
    *("--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"),
    *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/"),
]


class Bwrap:
    name: ClassVar[str] = "bwrap"

    def __init__(self, scratch: Path) -> None:
        self.prefix = [find_program("bwrap"), *FLAGS, "--"]

    async def fresh(self, argv: Sequence[str]) -> None:
        await run_command([*self.prefix, *argv])
