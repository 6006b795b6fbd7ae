"""Put the static `cell` binary into the wheel, and beside the sources of an editable install."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CellBuildHook(BuildHookInterface[Any]):
    """Runs for wheels only; an sdist carries the sources of the binary instead."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        binary = root / "src" / "cloister" / "bin" / "cell"
        builder = [sys.executable, str(root / "scripts" / "build_cell.py"), "--to", str(binary)]
        finished = subprocess.run(builder, check=False)
        if finished.returncode != 0:
            raise SystemExit("cloister: the cell binary was not built; the reason is printed above")
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        if version != "editable":
            build_data["force_include"][str(binary)] = "cloister/bin/cell"
