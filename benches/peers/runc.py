"""runc: the container runtime under Docker, with the bundle `runc spec` writes."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from benches.measure import NotMeasurable
from benches.peers.peer import find_program, run_command


class Runc:
    name: ClassVar[str] = "runc"

    def __init__(self, scratch: Path) -> None:
        self.program = find_program("runc")
        self.scratch = scratch / "runc"
        self.state = self.scratch / "state"
        self.state.mkdir(parents=True)
        self.bundles: dict[tuple[str, ...], Path] = {}
        self.numbers = itertools.count()

    async def fresh(self, argv: Sequence[str]) -> None:
        bundle = self.bundles.get(tuple(argv)) or self.write_bundle(tuple(argv))
        identity = f"bench-{os.getpid()}-{next(self.numbers)}"
        command = [self.program, f"--root={self.state}", "run", f"--bundle={bundle}", identity]
        await run_command(command)

    def write_bundle(self, argv: tuple[str, ...]) -> Path:
        """The stock configuration; only the command, the terminal and a read-only /usr differ."""
        bundle = self.scratch / f"bundle{len(self.bundles)}"
        root = bundle / "rootfs"
        for name in ("usr", "proc", "dev", "sys", "tmp", "etc"):
            (root / name).mkdir(parents=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        rootless = [] if os.getuid() == 0 else ["--rootless"]
        written = subprocess.run(
            [self.program, "spec", *rootless, f"--bundle={bundle}"], check=False
        )
        if written.returncode != 0:
            raise NotMeasurable(f"runc spec ended with {written.returncode}")
        file = bundle / "config.json"
        configuration = json.loads(file.read_text())
        configuration["process"]["terminal"] = False
        configuration["process"]["args"] = list(argv)
        configuration["mounts"].append(
            {"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]}
        )
        file.write_text(json.dumps(configuration))
        self.bundles[argv] = bundle
        return bundle
