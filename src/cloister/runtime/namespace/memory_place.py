"""Where memory that is not sealed lies: on a filesystem that is itself in memory, or nowhere."""

from __future__ import annotations

import functools
import hashlib
import os
import stat
from pathlib import Path

from cloister.errors import HostError, Unsupported

_IN_MEMORY = ("tmpfs", "ramfs")
_SHARED = Path("/dev/shm")  # noqa: S108


@functools.cache
def memory_directory(base: Path) -> Path:
    """Return a directory for memory, made and checked: the runtime directory, if it is in memory.

    Where it is not, as on hosts without systemd, what was in a sandbox would be on a disk in plain,
    and be found there after it was removed.
    """
    if is_in_memory(base):
        return base
    if not is_in_memory(_SHARED):
        raise Unsupported(
            f"neither {base} nor {_SHARED} is in memory, and what a sandbox knows must not be on a "
            f"disk in plain; mount a tmpfs at {_SHARED}"
        )
    path = _beside(base)
    path.mkdir(mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise HostError(f"{path} belongs to somebody else; remove it")
    os.chmod(path, 0o700)
    return path


def memory_directories(base: Path) -> tuple[Path, ...]:
    """Return where memory of owners in a runtime directory may have been left."""
    path = _beside(base)
    return (base, path) if path.is_dir() and not path.is_symlink() else (base,)


def is_in_memory(path: Path) -> bool:
    """Whether what is written there is written to no disk; swap is the host's to encrypt."""
    device = os.stat(path).st_dev if path.exists() else 0
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        if words[2] == number:
            return words[words.index("-") + 1] in _IN_MEMORY
    return False


def _beside(base: Path) -> Path:
    # Each runtime directory has its own: names of owners are unique in one only.
    name = hashlib.sha256(os.fsencode(base)).hexdigest()[:16]
    return _SHARED / f"cloister-{os.geteuid()}-{name}"
