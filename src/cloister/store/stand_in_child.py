"""The stand-in itself: a process in a user namespace that does what it is asked, each in a fork.

It ends when its owner does, or when it has had nothing to do for a while; what it was doing ends
with it.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import os
import pickle
import select
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

READY = b"r"
MAPPED = b"m"
TAKEN = b"t"
LONGEST_ERRAND = 4096
MOST_DESCRIPTORS = 64

_CLONE_NEWUSER = 0x10000000
_PR_SET_PDEATHSIG = 1
_IDLE_S = 10.0
# Above whatever number an owner's descriptors have here.
_ASIDE = 512
_libc = ctypes.CDLL(None, use_errno=True)


def serve(number: int) -> None:
    """Enter the namespace, have the owner map its ids, and do errands until nobody asks."""
    link = socket.socket(fileno=number)
    if _libc.unshare(_CLONE_NEWUSER) != 0:
        raise SystemExit(1)
    link.send(READY)
    if link.recv(1) != MAPPED:
        raise SystemExit(1)
    # Denied where the namespace holds one id alone: then there are none to be rid of.
    with suppress(PermissionError):
        os.setgroups([])
    # The directory it was started in may be removed, or be on a disk to be unmounted.
    os.chdir("/")
    # What interrupts the owner at its terminal is the owner's to pass on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        is_busy = _has_errands()
        if not select.select([link], [], [], _IDLE_S)[0]:
            if is_busy:
                continue
            break
        message, descriptors, _, _ = socket.recv_fds(
            link, LONGEST_ERRAND, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        if not message:
            break
        module, *numbers = message.decode().split()
        # Here, so that the next errand of its kind finds it loaded; what fails, fails there too.
        with suppress(ImportError):
            importlib.import_module(module)
        errand = os.fork()
        if errand == 0:
            link.close()
            _run_errand(descriptors, [int(each) for each in numbers])
        for each in descriptors:
            os.close(each)
        handle = os.pidfd_open(errand)
        socket.send_fds(link, [TAKEN], [handle])
        os.close(handle)


def _has_errands() -> bool:
    """Whether anything is being done; what is over is forgotten."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return False
    return True


def _run_errand(descriptors: Sequence[int], numbers: Sequence[int]) -> NoReturn:
    """Read a call from the first descriptor, make it, answer on the second; the rest are its."""
    above = os.getppid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != above:
        os._exit(1)
    aside = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _ASIDE) for each in descriptors]
    for each in descriptors:
        os.close(each)
    asked, answering, *kept = aside
    for handle, number in zip(kept, numbers, strict=True):
        os.dup2(handle, number)
        os.close(handle)
    answer: tuple[bool, object]
    try:
        with open(asked, "rb") as requests:
            # Written by the owner that started this process, over a pipe nobody else has.
            function, arguments = pickle.loads(requests.read())  # noqa: S301
        answer = (True, function(*arguments))
    except Exception as error:
        answer = (False, error)
    try:
        with open(answering, "wb") as answers:
            answers.write(pickle.dumps(answer))
    except OSError:
        # Nobody waits for it any more.
        os._exit(1)
    os._exit(0)
