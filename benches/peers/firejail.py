"""firejail: a setuid program with namespaces, seccomp and a private home."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from benches.peers.peer import find_program, run_command

# No profile file, so that none of a desktop's is read; the rest is what an offline run needs.
FLAGS = [
    *("--noprofile", "--quiet", "--net=none"),
    *("--private", "--private-tmp", "--seccomp", "--caps.drop=all"),
]


class Firejail:
    name: ClassVar[str] = "firejail"

    def __init__(self, scratch: Path) -> None:
        self.prefix = [find_program("firejail"), *FLAGS, "--"]

    async def fresh(self, argv: Sequence[str]) -> None:
        await run_command([*self.prefix, *argv])
