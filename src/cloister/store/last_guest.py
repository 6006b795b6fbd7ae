"""The guest that last ran on a kept disk: where its owner was killed, it lives a moment longer."""

from __future__ import annotations

import os
import select
from pathlib import Path

_PATIENCE_S = 20.0


def write_holder(lock: int, guest: int | None = None) -> None:
    """Write into a lock who has it, and the first process of the sandbox that runs under it."""
    words = [str(os.getpid())]
    if guest is not None and (started := _started(guest)) is not None:
        words += [str(guest), started]
    text = " ".join(words).encode()
    # In one write, over what is there: whoever reads it sees the old words or the new ones.
    os.pwrite(lock, text.ljust(64), 0)


def read_holder(lock: int) -> str:
    """Return the process that has a lock, or "unknown"."""
    words = _words(lock)
    return words[0] if words else "unknown"


def read_holder_of(path: Path) -> str:
    """Return the process that has the lock in a file, or "unknown"."""
    try:
        with open(path, "rb") as file:
            return read_holder(file.fileno())
    except FileNotFoundError:
        return "unknown"


def live_machine_of(path: Path) -> str | None:
    """Return the process whose sandbox runs under the lock in a file, if that one still does."""
    try:
        with open(path, "rb") as file:
            words = _words(file.fileno())
    except FileNotFoundError:
        return None
    if len(words) != 3 or not words[1].isdecimal() or _started(int(words[1])) != words[2]:
        return None
    return words[0]


def wait_last_guest(lock: int) -> bool:
    """Wait until what ran under the lock before has ended; False if it does not.

    Whoever is killed gives up the lock at once, and the kernel ends its sandbox a moment later.
    Until then that sandbox could write to the disk. Its first process ends as the last of all.
    """
    words = _words(lock)
    if len(words) != 3 or not words[1].isdecimal():
        return True
    guest, started = int(words[1]), words[2]
    try:
        descriptor = os.pidfd_open(guest)
    except OSError:
        return True
    try:
        # Asked after it was opened: a number that was given to another process is known by this.
        if _started(guest) != started:
            return True
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(_PATIENCE_S * 1000))
    finally:
        os.close(descriptor)


def _words(lock: int) -> list[str]:
    return os.pread(lock, 64, 0).decode("ascii", "replace").split()


def _started(pid: int) -> str | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold anything; after it, the start time is the twentieth word.
    return text.rpartition(")")[2].split()[19]
