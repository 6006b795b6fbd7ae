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


def _report(attempt: Callable[..., Any]) -> None:
    try:
        value = attempt(*sys.argv[1:])
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, str(error.errno))
        print(json.dumps({"errno": name, "text": str(error)}))
    else:
        print(json.dumps({"value": value}))
