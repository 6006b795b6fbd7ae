"""Compile the small C programs that time the kernel without Python in the way."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from benches.measure import NotMeasurable

SOURCES = Path(__file__).parent / "floor"


def compile_program(name: str, folder: Path, *, static: bool = False) -> Path:
    """Compile benches/floor/`name`.c into `folder`."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise NotMeasurable("there is no C compiler; install gcc and libc6-dev")
    program = folder / name
    command = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(program)]
    command += ["-static"] * static + [str(SOURCES / f"{name}.c")]
    finished = subprocess.run(command, check=False, capture_output=True, text=True)
    if finished.returncode != 0:
        raise NotMeasurable(f"{name}.c does not compile: {finished.stderr.strip()}")
    return program
