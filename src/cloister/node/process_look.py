"""What a program is called and which number it has inside, read the moment it begins."""

from __future__ import annotations

import errno
import fcntl
import os
import re

_INSIDE = re.compile(rb"\nNSpid:[\t0-9]*\t([0-9]+)\n")
# The kernel takes no longer arguments than that (a quarter of an 8 MiB stack, by default).
_MOST_ARGV_BYTES = 2 * 2**20
_SOME_BYTES = 4096
# linux/nsfs.h, since Linux 6.11: the number that a process of ours has in a namespace below ours.
_NS_GET_PID_IN_PIDNS = 2 << 30 | 4 << 16 | 0xB7 << 8 | 8
# With more of them, one file that names all numbers of a process is read sooner.
_MOST_ASKED = 8

# The arguments of a program, None where it was over before; and its number inside.
Look = tuple[tuple[bytes, ...] | None, int | None]
NOTHING: Look = (None, None)


class Insides:
    """The process namespaces that are watched, and the programs that begin in them.

    Changed by one thread while others look: the mapping is replaced and never changed.
    """

    def __init__(self) -> None:
        self._namespaces: dict[int, int] = {}
        self._can_ask = True

    def add(self, first_pid: int) -> None:
        """Look into the namespace of this process too."""
        try:
            fd = os.open(f"/proc/{first_pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # It is over, or another person's: then every program is looked at.
            self._can_ask = False
            return
        self._namespaces = {**self._namespaces, first_pid: fd}

    def remove(self, first_pid: int) -> None:
        """Look there no more; by whoever keeps others from looking meanwhile."""
        left = dict(self._namespaces)
        fd = left.pop(first_pid, None)
        self._namespaces = left
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        """Let go of all."""
        for pid in list(self._namespaces):
            self.remove(pid)

    def look(self, pid: int) -> Look:
        """Read what a process is called, if it is inside and still there."""
        if not self._can_ask or len(self._namespaces) > _MOST_ASKED:
            return _look(pid)
        try:
            inside = self._number(pid)
        except OSError:
            # The kernel is older than the question.
            self._can_ask = False
            return _look(pid)
        if inside is None:
            return NOTHING
        line = _read(f"/proc/{pid}/cmdline", _MOST_ARGV_BYTES)
        return (_arguments(line), inside) if line else NOTHING

    def _number(self, pid: int) -> int | None:
        for fd in self._namespaces.values():
            try:
                return fcntl.ioctl(fd, _NS_GET_PID_IN_PIDNS, pid)
            except OSError as error:
                if error.errno != errno.ESRCH:
                    raise
        return None


def _look(pid: int) -> Look:
    line = _read(f"/proc/{pid}/cmdline", _MOST_ARGV_BYTES)
    if not line:
        return NOTHING
    found = _INSIDE.search(_read(f"/proc/{pid}/status", _SOME_BYTES))
    return _arguments(line), None if found is None else int(found[1])


def _arguments(line: bytes) -> tuple[bytes, ...]:
    return tuple(line.removesuffix(b"\0").split(b"\0"))


def _read(path: str, most_bytes: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = os.read(fd, _SOME_BYTES)
        if len(data) == _SOME_BYTES and most_bytes > _SOME_BYTES:
            data += os.read(fd, most_bytes)
        return data
    except OSError:
        return b""
    finally:
        os.close(fd)
