"""Where state that outlives a process is kept, and how that directory is walled off."""

from __future__ import annotations

import ctypes
import os
import re
import stat
from pathlib import Path

from cloister.errors import Exhausted, HostError, RequestError
from cloister.model import format_bytes, quote

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_LEAST_FREE_BYTES = 64 * 1024 * 1024
_LEAST_FREE_SHARE = 100
_libc = ctypes.CDLL(None, use_errno=True)


def state_directory() -> Path:
    """Return where this person's state is kept, which need not exist yet."""
    if given := os.environ.get("CLOISTER_STATE"):
        return Path(given).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/cloister")
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base).absolute() / "cloister"


def make_private(path: Path) -> None:
    """Make a directory that only its owner may enter, or check that it is one.

    Inside lie set-id files and files of foreign owners, chosen by sandboxes: this mode is what
    keeps everybody else on the host from executing them.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.lstat(path)
    except OSError as error:
        raise HostError(
            f"{path} cannot be made: {error.strerror}; set CLOISTER_STATE to a directory of yours"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise HostError(f"{path} belongs to somebody else; set CLOISTER_STATE to one of yours")
    if stat.S_IMODE(found.st_mode) != 0o700:
        os.chmod(path, 0o700)


def parse_name(value: object, what: str) -> str:
    """Return the text as a name; it is safe as one name in a path."""
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise RequestError(
            f"{what} is {quote(value)}; write up to 63 characters of a-z, 0-9, '_', '.' and '-', "
            "the first a letter or digit"
        )
    return value


def about(count: int) -> str:
    """Return a number of bytes for people, to the megabyte."""
    unit = 1024 * 1024
    if count >= 1024 * 10 * unit:
        unit *= 1024
    return format_bytes(count // unit * unit) if count >= unit else format_bytes(count)


def free_bytes(path: Path) -> int:
    """Return what an ordinary user could still write on that filesystem."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def require_room(*paths: Path) -> None:
    """Refuse while there is still room for what runs to end well."""
    for path in paths:
        found = os.statvfs(path)
        least = max(_LEAST_FREE_BYTES, found.f_blocks * found.f_frsize // _LEAST_FREE_SHARE)
        free = found.f_bavail * found.f_frsize
        if free < least:
            raise Exhausted(
                f"{about(free)} are free at {path}; {about(least)} must stay free "
                "for what runs already; run `cloister gc`, or remove snapshots and images",
                limit="disk",
            )


def sync(path: Path) -> None:
    """Return when everything written to that filesystem so far would survive a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(handle) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(handle)
