"""gVisor's runsc: a user-space kernel answers the system calls."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from benches.peers.peer import find_program, run_command

# `do` runs one command over the host's root, read through an overlay in memory. The ptrace
# platform works everywhere; the kvm one may hang where /dev/kvm is only half there.
FLAGS = ["--network=none", "--platform=ptrace"]


class Runsc:
    name: ClassVar[str] = "runsc"

    def __init__(self, scratch: Path) -> None:
        rootless = [] if os.getuid() == 0 else ["--rootless"]
        state = scratch / "runsc"
        state.mkdir()
        self.prefix = [find_program("runsc"), f"--root={state}", *rootless, *FLAGS, "do"]

    async def fresh(self, argv: Sequence[str]) -> None:
        await run_command([*self.prefix, *argv])
