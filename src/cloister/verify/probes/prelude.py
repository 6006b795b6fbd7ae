"""Put before every probe's source: what a probe may use, and how it reports."""

# ruff: noqa: F401
from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number: int, *arguments: Any) -> int:
    """Make a system call; a failure is an OSError."""
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = libc.syscall(ctypes.c_long(number), *wide)
    if result == -1:
        number_of_error = ctypes.get_errno()
        raise OSError(number_of_error, os.strerror(number_of_error))
    return result


def tried(function: Callable[..., Any], *arguments: Any) -> str:
    """Return "ok", or the name of the error the kernel answered with."""
    try:
        function(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return "ok"


def opened(path: str, flags: int = os.O_RDONLY) -> str:
    """Return "ok" if the path could be opened, or the name of the error."""
    return tried(lambda: os.close(os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)))


def written(path: str) -> str:
    """Return "ok" if the path opens for writing and is not the null device laid over it."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    status = os.fstat(handle)
    os.close(handle)
    is_null = stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(1, 3)
    return "masked" if is_null else "ok"


def shown(path: str) -> str:
    """Return "empty", "shows N" for what a file or directory holds, or the name of the error."""
    try:
        if os.path.isdir(path):
            found = len(os.listdir(path))
        else:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                found = len(os.read(handle, 4096))
            finally:
                os.close(handle)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return f"shows {found}" if found else "empty"


def in_child(act: Callable[[], Any]) -> str:
    """Return "exit N" or the name of the signal with which a forked child ended."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except OSError as error:
            os._exit(error.errno or 255)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit {os.WEXITSTATUS(status)}"


def tried_apart(function: Callable[..., Any], *arguments: Any) -> str:
    """Return what `tried` would, of a forked child: for what would change this process."""
    ended = in_child(lambda: function(*arguments))
    if ended == "exit 0":
        return "ok"
    number = ended.removeprefix("exit ")
    return errno.errorcode.get(int(number), ended) if number.isdigit() else ended


def _report(attempt: Callable[..., Any]) -> None:
    try:
        value = attempt(*sys.argv[1:])
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, str(error.errno))
        print(json.dumps({"errno": name, "text": str(error)}))
    else:
        print(json.dumps({"value": value}))
