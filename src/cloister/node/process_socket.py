"""Sockets on which the kernel tells of processes: the process connector, filtered in the kernel."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import Unsupported

# linux/connector.h and linux/cn_proc.h.
_NETLINK_CONNECTOR = 11
_INDEX_OF_PROCESSES, _VALUE_OF_PROCESSES = 1, 1
_LISTEN, _IGNORE = 1, 2
_NLMSG_DONE = 3
_NETLINK_HEADER, _CONNECTOR_HEADER = struct.Struct("=IHHII"), struct.Struct("=IIIIHH")
# After both headers: what, on which processor, when, and four numbers more.
_EVENT = struct.Struct("=36xI12xIIII")
_MOST_BYTES = 4096
# Root may have that much; others have what the host gives everybody.
_BUFFER_BYTES = 32 * 2**20
_SO_RCVBUFFORCE, _SO_ATTACH_FILTER = 33, 26
_ANSWER_MS = 500
_DROPS_COLUMN, _INODE_COLUMN = 8, 9

FORK, EXEC, EXIT = 1, 2, 0x80000000
# Classic BPF. Words are read as if they were big-endian, so the constants are turned round.
_LOAD, _COPY_TO_X, _IF, _IF_X, _RETURN = 0x20, 0x07, 0x15, 0x1D, 0x06
_WHAT = 36
_TAKE, _LEAVE = (_RETURN, 0, 0, 0xFFFF), (_RETURN, 0, 0, 0)
# The answer to the subscription is 0, and must come through.
EXECUTIONS = (
    (_LOAD, 0, 0, _WHAT),
    (_IF, 1, 0, 0x02000000),
    (_IF, 0, 1, 0),
    _TAKE,
    _LEAVE,
)
# Threads have another number than their process, and are none.
PROCESSES = (
    (_LOAD, 0, 0, _WHAT),
    (_IF, 3, 0, 0x01000000),
    (_IF, 6, 0, 0x00000080),
    (_IF, 9, 0, 0x02000000),
    (_IF, 8, 9, 0),
    (_LOAD, 0, 0, 60),
    (_COPY_TO_X, 0, 0, 0),
    (_LOAD, 0, 0, 64),
    (_IF_X, 4, 5, 0),
    (_LOAD, 0, 0, 52),
    (_COPY_TO_X, 0, 0, 0),
    (_LOAD, 0, 0, 56),
    (_IF_X, 0, 1, 0),
    _TAKE,
    _LEAVE,
)
Program = tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Overrun:
    """So many events have not got through since the socket was made."""

    count: int


class ProcessSocket:
    """One subscription; raises Unsupported where the kernel does not tell us."""

    def __init__(self, program: Program) -> None:
        try:
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_CONNECTOR
            )
        except OSError as error:
            raise _unsupported(error.strerror) from error
        try:
            self._subscribe(program)
        except OSError as error:
            self._socket.close()
            raise _unsupported(error.strerror) from error
        except BaseException:
            self._socket.close()
            raise

    def _subscribe(self, program: Program) -> None:
        opened = self._socket
        try:
            opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        except PermissionError:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        _attach(opened, program)
        opened.bind((0, _INDEX_OF_PROCESSES))
        self._say(_LISTEN)
        # Outside the first namespaces of a host it is not refused: nothing ever comes.
        answered = select.poll()
        answered.register(opened, select.POLLIN)
        if not answered.poll(_ANSWER_MS):
            raise _unsupported("no answer; is this a container?")

    def _say(self, word: int) -> None:
        body = _CONNECTOR_HEADER.pack(_INDEX_OF_PROCESSES, _VALUE_OF_PROCESSES, 0, 0, 4, 0)
        body += struct.pack("=I", word)
        self._socket.send(_NETLINK_HEADER.pack(16 + len(body), _NLMSG_DONE, 0, 0, 0) + body)

    def fileno(self) -> int:
        return self._socket.fileno()

    def take(self) -> tuple[int, int, int, int, int] | Overrun | None:
        """Return an event as (what, four numbers), or None when there is none now."""
        while True:
            try:
                data, (sender, _) = self._socket.recvfrom(_MOST_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                return Overrun(self._drops())
            # Another process may send here too, if it is privileged; the kernel's number is 0.
            if sender == 0 and len(data) >= _EVENT.size:
                return _EVENT.unpack_from(data)

    def _drops(self) -> int:
        inode = str(os.fstat(self.fileno()).st_ino)
        for line in Path("/proc/net/netlink").read_text().splitlines():
            columns = line.split()
            if columns[_INODE_COLUMN] == inode:
                return int(columns[_DROPS_COLUMN])
        return 0

    def close(self) -> None:
        """Say that we listen no more: before Linux 6.6 the kernel would go on talking."""
        self._say(_IGNORE)
        self._socket.close()

    def abandon(self) -> None:
        """Let go of it in a forked child."""
        self._socket.close()


def _attach(opened: socket.socket, program: Program) -> None:
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    held = ctypes.create_string_buffer(code, len(code))
    described = struct.pack("@HP", len(program), ctypes.addressof(held))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)


def _unsupported(why: str | None) -> Unsupported:
    return Unsupported(f"the kernel does not tell this user of processes: {why}")
