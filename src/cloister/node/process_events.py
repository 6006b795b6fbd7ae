"""The kernel's own word on every fork, execution and exit of this host: the process connector."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import threading
from typing import Protocol

from cloister.errors import Unsupported

# linux/connector.h and linux/cn_proc.h.
_NETLINK_CONNECTOR = 11
_INDEX_OF_PROCESSES, _VALUE_OF_PROCESSES = 1, 1
_LISTEN = 1
_ACKNOWLEDGED, _FORK, _EXEC, _EXIT = 0, 1, 2, 0x80000000
_NLMSG_DONE = 3
_NETLINK_HEADER, _CONNECTOR_HEADER = struct.Struct("=IHHII"), struct.Struct("=IIIIHH")
# The sequence number of a message, then what, on which processor, when, and four numbers more.
_EVENT = struct.Struct("=24xI8xIIQIIII")
_MOST_BYTES = 4096
# As large as root may make it, and what anybody is given: a burst of forks waits there.
_BUFFER_BYTES = 32 * 2**20
_SO_RCVBUFFORCE = 33
_ANSWER_MS = 500


class Hearer(Protocol):
    """Who is told; always by the one reading thread. Process numbers are those of the host."""

    def forked(self, parent: int, child: int) -> None:
        """A process made another one."""

    def executed(self, pid: int) -> None:
        """A process became another program."""

    def exited(self, pid: int, status: int) -> None:
        """A process ended; `status` is as `wait` gives it."""

    def missed(self, count: int) -> None:
        """So many events of this host did not get through."""


class ProcessEvents:
    """Reads the events in a thread until it is closed."""

    def __init__(self, hearer: Hearer) -> None:
        self._hearer = hearer
        self._socket = _subscribe()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._closed = False
        self._numbers: dict[int, int] = {}
        self._thread = threading.Thread(target=self._read, name="cloister-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; not to be called by it."""
        self._closed = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self.abandon()

    def abandon(self) -> None:
        """Let go of the descriptors, as a forked child must, in which there is no thread."""
        self._socket.close()
        os.close(self._wake)

    def _read(self) -> None:
        # What a process is called must be read before it ends, which for some is half a
        # millisecond: this thread goes first, if it may. On a busy host it misses half otherwise.
        with contextlib.suppress(PermissionError):
            urgent = os.SCHED_RR | os.SCHED_RESET_ON_FORK
            os.sched_setscheduler(threading.get_native_id(), urgent, os.sched_param(1))
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        waiting.register(self._wake, select.POLLIN)
        while not self._closed:
            if not self._take():
                waiting.poll()

    def _take(self) -> bool:
        """Hear one event; False when there is none now."""
        try:
            data, (sender, _) = self._socket.recvfrom(_MOST_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            # How many, the gap in the numbers of the next events says.
            return True
        # Another process may send here too, if it is privileged; the kernel's number is 0.
        if sender != 0 or len(data) < _EVENT.size:
            return True
        number, what, processor, _, first, first_group, second, second_group = _EVENT.unpack_from(
            data
        )
        if what == _ACKNOWLEDGED:
            # An answer to another listener is in the row on newer kernels, and not on older ones.
            if number == self._numbers.get(processor):
                self._count(processor, number)
            return True
        self._count(processor, number)
        # Threads have another number than their process, and are none.
        if what == _FORK and second == second_group:
            self._hearer.forked(first_group, second)
        elif what == _EXEC:
            self._hearer.executed(first_group)
        elif what == _EXIT and first == first_group:
            self._hearer.exited(first, second)
        return True

    def _count(self, processor: int, number: int) -> None:
        """Each processor numbers its events: what is left out of the row was lost."""
        expected = self._numbers.get(processor, number)
        self._numbers[processor] = (number + 1) & 0xFFFFFFFF
        missing = (number - expected) & 0xFFFFFFFF
        if 0 < missing < 2**31:
            self._hearer.missed(missing)


def _subscribe() -> socket.socket:
    """Return a socket on which the kernel tells of processes, or raise Unsupported."""
    try:
        opened = socket.socket(
            socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_CONNECTOR
        )
    except OSError as error:
        raise _unsupported(error.strerror) from error
    try:
        try:
            opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        except PermissionError:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        opened.bind((0, _INDEX_OF_PROCESSES))
        body = _CONNECTOR_HEADER.pack(_INDEX_OF_PROCESSES, _VALUE_OF_PROCESSES, 0, 0, 4, 0)
        body += struct.pack("=I", _LISTEN)
        opened.send(_NETLINK_HEADER.pack(16 + len(body), _NLMSG_DONE, 0, 0, 0) + body)
        # Outside the first namespaces of a host it is not refused: nothing ever comes.
        answered = select.poll()
        answered.register(opened, select.POLLIN)
        if not answered.poll(_ANSWER_MS):
            raise _unsupported("no answer; is this a container?")
    except OSError as error:
        opened.close()
        raise _unsupported(error.strerror) from error
    except BaseException:
        opened.close()
        raise
    return opened


def _unsupported(why: str | None) -> Unsupported:
    return Unsupported(f"the kernel does not tell this user of processes: {why}")
