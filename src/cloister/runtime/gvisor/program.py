"""Finds runsc on this host, and asks it what it is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cloister.errors import HostError

# Where a release that was installed by hand lies, which is mostly newer than the distribution's.
_PLACES = ("/usr/local/bin", "/opt/gvisor/bin", "/usr/bin", "/usr/sbin", "/bin")
_VERSION = re.compile(r"runsc version (?:release-)?(\S{1,64})")
_DATE = re.compile(r"(20\d{6})")
_ASK_S = 20.0
BROKEN = "it is broken; remove it, or run `apt-get install --reinstall runsc`"
INSTALL = (
    "run `cloister setup gvisor`, or put a release of runsc into /usr/local/bin and make it "
    "executable for everybody"
)


@dataclass(frozen=True, slots=True)
class Runsc:
    """One installed runsc; `platform` is how it catches the system calls."""

    path: Path
    version: str
    platform: str


def candidates() -> tuple[Path, ...]:
    """Return every runsc that everybody may execute, the preferred places first."""
    found = shutil.which("runsc")
    places = [Path(place, "runsc") for place in _PLACES] + ([] if found is None else [Path(found)])
    real = [Path(os.path.realpath(path)) for path in places if _is_program(path)]
    return tuple(dict.fromkeys(real))


def _is_program(path: Path) -> bool:
    try:
        # It runs under ids that own nothing here: what others may do is all it may.
        return path.is_file() and path.stat().st_mode & 0o005 == 0o005
    except OSError:
        return False


@cache
def find_runsc() -> Runsc:
    """Return the newest runsc of this host, or raise HostError saying how to have one."""
    paths = candidates()
    if not paths:
        raise HostError(f"runsc is not installed; {INSTALL}")
    known = [found for path in paths if (found := _ask(path)) is not None]
    if not known:
        raise HostError(
            f"{paths[0]} does not answer `runsc --version` as a runsc does; {BROKEN}, or name a "
            "release with `cloister setup gvisor --from`"
        )
    return max(known, key=lambda found: _released(found.version))


def _released(version: str) -> str:
    date = _DATE.search(version)
    return date[1] if date is not None else ""


def _ask(path: Path) -> Runsc | None:
    version = version_of(path)
    if version is None:
        return None
    # The faster one where this release has it; a virtual machine's is not taken on trust.
    flags = _words_of(path, "flags")
    platform = "systrap" if re.search(r"platform.*systrap", flags) else "ptrace"
    return Runsc(path, version, platform)


def version_of(path: Path) -> str | None:
    """Return what a runsc says that it is; None where it says nothing of the kind."""
    version = _VERSION.search(_words_of(path, "--version"))
    return None if version is None else version[1]


def _words_of(path: Path, word: str) -> str:
    try:
        done = subprocess.run(
            [path, word], capture_output=True, timeout=_ASK_S, env={"PATH": "/usr/bin:/bin"}
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).decode("utf-8", "replace")
