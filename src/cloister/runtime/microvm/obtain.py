"""Fetches what machines need through the host's package manager, and says what it could not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cloister.errors import HostError
from cloister.runtime.microvm.place import made_once
from cloister.runtime.microvm.program import (
    AGAIN,
    KERNEL_SETTING,
    NO_NAMED_KERNEL,
    find_kernel,
    find_program,
    find_qemu,
)

_KERNEL = "linux-image-cloud-amd64"
_QEMU = ("qemu-system-x86", "e2fsprogs")
_DEPENDS = re.compile(r"^\s*Depends: (linux-image-\S{1,128})$", re.MULTILINE)
_FETCH_S = 600.0
_APT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}


def obtain_qemu() -> str:
    """Install QEMU if it is not there; return what was done."""
    found = find_program()
    if found is not None and shutil.which("mke2fs", path=_APT["PATH"]) is not None:
        return f"kept: {found}, {find_qemu().version}"
    if os.geteuid() != 0:
        raise HostError(f"{_QEMU[0]} is not installed; run `apt install {' '.join(_QEMU)}` as root")
    _run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *_QEMU])
    if find_program() is None:
        raise HostError(f"apt says that {_QEMU[0]} is installed, and there is no program; {AGAIN}")
    return f"installed: {' '.join(_QEMU)}"


def obtain_kernel() -> str:
    """Unpack Debian's kernel for machines if there is none; nothing of the host is changed."""
    found = find_kernel()
    if found is not None:
        return f"kept: {found.image}"
    if os.environ.get(KERNEL_SETTING):
        raise HostError(NO_NAMED_KERNEL)
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise HostError(
            f"this host has no apt to fetch a kernel with; unpack Debian's {_KERNEL} somewhere and "
            f"name that directory with {KERNEL_SETTING}"
        )
    return f"unpacked: {made_once('kernel', _unpack_kernel)}"


def _unpack_kernel(to: Path) -> None:
    depends = _DEPENDS.search(_run(["apt-cache", "depends", _KERNEL]))
    if depends is None:
        raise HostError(f"apt knows no {_KERNEL}; run `apt-get update`, and this again")
    with tempfile.TemporaryDirectory(dir=to.parent, prefix="fetch.") as directory:
        _run(["apt-get", "download", "-qq", depends[1]], cwd=directory)
        (package,) = Path(directory).glob("*.deb")
        _run(["dpkg-deb", "-x", str(package), str(to)])


def _run(words: Sequence[str], cwd: str = "/") -> str:
    try:
        done = subprocess.run(words, capture_output=True, env=_APT, cwd=cwd, timeout=_FETCH_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{words[0]} did not finish: {error}; see docs/runtimes.md") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()[-500:]
        raise HostError(f"`{' '.join(words)}` failed: {said}; see docs/runtimes.md")
    return done.stdout.decode("utf-8", "replace")
