"""The host's own copy of ipykernel, shown read-only to sandboxes whose image has none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cloister.errors import HostError, NotFound
from cloister.model import quote
from cloister.policy import HostRoot
from cloister.sandbox import Sandbox
from cloister.store.place import make_private, state_directory

NAME = "kernel"
_INSTALL_S = 600
# What a kernel of ours never imports: a debugger of 30 MB, and completion for people who type.
_UNWANTED = ("debugpy", "jedi", "parso", "share", "bin")


def library_directory() -> Path:
    """Return where the copy is, or would be."""
    return state_directory() / NAME


def installed_library() -> Path | None:
    """Return where the copy is, if there is one."""
    directory = library_directory()
    return directory if (directory / "ipykernel").is_dir() else None


def shown_library(sandbox: Sandbox) -> list[str]:
    """Return the path inside under which a sandbox sees the copy, if it does."""
    root = sandbox.policy.root
    if not isinstance(root, HostRoot):
        return []
    return [path for path in root.extra if Path(path).name == NAME]


def install_library(python: str, *packages: str) -> Path:
    """Put ipykernel, and what it needs, where sandboxes can be shown it; for one Python.

    `python` is the interpreter that the sandboxes have. Whole or not at all: another one is used
    until the new one is complete.
    """
    program = shutil.which(python)
    if program is None:
        raise NotFound(f"no program {quote(python)} on this host", what=python)
    directory = library_directory()
    make_private(directory.parent)
    for left in directory.parent.glob(f".{NAME}-*"):
        # Of an installation that was killed; one that runs is younger.
        if time.time() - left.lstat().st_mtime > 2 * _INSTALL_S:
            shutil.rmtree(left, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{NAME}-", dir=directory.parent))
    try:
        version = _run(
            program, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"
        ).strip()
        _run(
            sys.executable,
            # Nothing of the directory it is run in, which may be a stranger's.
            *("-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--target", str(draft), "--python-version", version, "--only-binary", ":all:"),
            *("ipykernel", *packages),
        )
        for name in _UNWANTED:
            shutil.rmtree(draft / name, ignore_errors=True)
        # By the interpreter that reads them: inside nobody can write what it compiles.
        _run(program, "-I", "-m", "compileall", "-q", str(draft))
        draft.chmod(0o755)
        old = directory.with_name(f".{NAME}-old-{os.getpid()}")
        if directory.exists():
            directory.rename(old)
        draft.rename(directory)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return directory


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S)
    except subprocess.TimeoutExpired:
        raise HostError(f"{command[0]} took longer than {_INSTALL_S} s") from None
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().rpartition("\n")[2][:300]
        raise HostError(f"{Path(command[0]).name} failed: {last}")
    return done.stdout
