"""Finds wasmtime and a Python for it, and says what of them a sandbox must be shown."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cloister.errors import Unsupported

INSTALL = "install it with `pip install 'cloister[wasm]'`"
# Where what is ours is inside.
_PLACE = "run/cloister-wasm"
# Every sandbox of the host's programs has this.
_SHOWN_ANYWAY = Path("/usr")
# Not one for each processor of the host, in each worker.
_THREADS = {"RAYON_NUM_THREADS": "2", "TOKIO_WORKER_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Wasmtime:
    """The wasmtime that is installed here; `shown` are (host path, target inside), read-only."""

    version: str
    shown: tuple[tuple[str, str], ...]
    argv: tuple[bytes, ...]
    env: tuple[bytes, ...]


@cache
def why_absent() -> str | None:
    """Return why there is no wasmtime here, if there is none."""
    return None if importlib.util.find_spec("wasmtime") else f"wasmtime is not installed; {INSTALL}"


@cache
def find_wasmtime() -> Wasmtime:
    """Return what is installed; nothing of it is loaded into this process."""
    # Imported when needed: it takes longer than most sandboxes do to start.
    import importlib.metadata

    found = importlib.util.find_spec("wasmtime")
    if found is None or found.origin is None:
        raise Unsupported(f'the runtime "wasm" needs wasmtime, which is not installed; {INSTALL}')
    package = Path(found.origin).parent.resolve()
    program = Path(__file__).resolve().with_name("worker.py")
    shown = [
        (str(package), f"{_PLACE}/packages/wasmtime"),
        (str(program), f"{_PLACE}/worker.py"),
    ]
    python, env, more = _python()
    argv = (python, "-I", "-S", "-B", f"/{_PLACE}/worker.py", f"/{_PLACE}/packages")
    return Wasmtime(
        version=importlib.metadata.version("wasmtime"),
        shown=(*shown, *more),
        argv=tuple(os.fsencode(word) for word in argv),
        env=tuple(os.fsencode(f"{name}={value}") for name, value in {**_THREADS, **env}.items()),
    )


def _python() -> tuple[str, dict[str, str], tuple[tuple[str, str], ...]]:
    """Return the path inside, its environment, and what must be shown: this very Python."""
    # The interpreter that a virtual environment was made of.
    executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    if executable.is_relative_to(_SHOWN_ANYWAY):
        return str(executable), {}, ()
    library = Path(sys.base_prefix, "lib").resolve()
    home = f"{_PLACE}/python"
    shown = ((str(executable), f"{home}/bin/python3"), (str(library), f"{home}/lib"))
    env = {"PYTHONHOME": f"/{home}", "LD_LIBRARY_PATH": f"/{home}/lib"}
    return f"/{home}/bin/python3", env, shown
