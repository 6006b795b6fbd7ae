"""The messages of the wire: how those to the guest are written, how those from it are read."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from cloister.errors import ProtocolViolation
from cloister.wire.codec import Reader, Writer
from cloister.wire.frames import Frame, encode_frame

# The one version number of the wire. Both ends must say the same.
GENERATION = 3

START, SIGNAL, RESIZE, DIAL, FILE, DATA, CLOSE, CREDIT, PING = range(1, 10)
HOLD, PROCEED, RENEW, ANSWER = range(10, 14)
HELLO, STARTED, EXITED, FAILED, PONG, HELD, ACCEPTED, ASKED, REFUSED = range(32, 41)

# Requests that the guest makes have numbers from here on.
FIRST_OF_GUEST = 1 << 31
# As CLOSE of a connection that came from inside: it is cut, which is not the end of a stream.
CUT = 255

# A FAILED message names a step and, at most, one path.
_MAX_TEXT = 8192
_MAX_FACTS = 64 * 1024
# What a name server is asked fits into this.
_MAX_QUESTION = 4096
# A record of the kernel's has the first 128 bytes of a packet, and some words about it.
_MAX_RECORD = 1024
# The kernel's own limit (include/linux/err.h); past a C int strerror() raises OverflowError.
_MAX_ERRNO = 4095
_EXITED = struct.Struct("<IBBQQQQQI")
_IDS = struct.Struct("<II")
_SIZE = struct.Struct("<BHH")


class Reach(IntEnum):
    """Whom a signal reaches."""

    PROCESS = 0
    GROUP = 1
    TREE = 2


class Operation(IntEnum):
    """What a file request asks for."""

    READ = 1
    WRITE = 2
    LIST = 3
    STAT = 4
    MAKE = 5
    MOVE = 6
    REMOVE = 7
    PUT = 8
    GET = 9
    WATCH = 10
    SPACE = 11


class Flag(IntEnum):
    """Details of a file request."""

    PARENTS = 1
    APPEND = 2
    RECURSIVE = 4
    REPLACE = 8
    FOLLOW = 16


def encode_start(
    id: int,
    *,
    uid: int,
    gid: int,
    pty: tuple[int, int] | None,
    tell: bool,
    stdin: bool,
    cwd: bytes,
    argv: Sequence[bytes],
    env: bytes,
) -> bytes:
    """Return the frame that runs a program; `env` comes from `encode_strings`."""
    size = b"\0" if pty is None else _SIZE.pack(1, *pty)
    head = _IDS.pack(uid, gid) + size + bytes((tell, stdin)) + len(cwd).to_bytes(4, "little")
    return encode_frame(START, id, head + cwd + encode_strings(argv) + env)


def encode_strings(strings: Sequence[bytes]) -> bytes:
    """Return a list of byte strings as the wire has it."""
    parts = [len(strings).to_bytes(4, "little")]
    for string in strings:
        parts.append(len(string).to_bytes(4, "little"))
        parts.append(string)
    return b"".join(parts)


def encode_signal(id: int, signal: int, reach: Reach) -> bytes:
    """Return the frame that signals a process, its group or its whole tree."""
    return encode_frame(SIGNAL, id, bytes((signal, reach)))


def encode_resize(id: int, rows: int, cols: int) -> bytes:
    """Return the frame that changes the size of a terminal."""
    return encode_frame(RESIZE, id, Writer().u16(rows).u16(cols).done())


def encode_dial(id: int, port: int) -> bytes:
    """Return the frame that connects to a port inside."""
    return encode_frame(DIAL, id, Writer().u16(port).done())


def encode_file(
    id: int,
    operation: Operation,
    *,
    uid: int,
    gid: int,
    path: bytes,
    other: bytes = b"",
    mode: int = 0,
    flags: int = 0,
    offset: int = 0,
    length: int = 0,
) -> bytes:
    """Return the frame that asks for a file operation."""
    w = Writer().u8(operation).u32(uid).u32(gid).bytes(path).bytes(other)
    w.u32(mode).u32(flags).u64(offset).u64(length)
    return encode_frame(FILE, id, w.done())


def encode_data(id: int, stream: int, data: bytes) -> bytes:
    """Return the frame that carries bytes of a stream."""
    return encode_frame(DATA, id, bytes((stream,)) + data)


def encode_close(id: int, stream: int) -> bytes:
    """Return the frame that ends a stream."""
    return encode_frame(CLOSE, id, bytes((stream,)))


def encode_credit(id: int, stream: int, count: int) -> bytes:
    """Return the frame that allows `count` more bytes of a stream."""
    return encode_frame(CREDIT, id, Writer().u8(stream).u32(count).done())


def encode_ping(id: int) -> bytes:
    """Return the frame that asks whether the guest is there."""
    return encode_frame(PING, id, b"")


def encode_hold(id: int) -> bytes:
    """Return the frame after which the guest says HELD and nothing more."""
    return encode_frame(HOLD, id, b"")


def encode_proceed(id: int) -> bytes:
    """Return the frame that lets a guest go on that was held."""
    return encode_frame(PROCEED, id, b"")


def encode_renew(id: int, renewal: int, seed: bytes, name: str) -> bytes:
    """Return the frame that tells a guest which goes on from saved memory who it is now."""
    w = Writer().u64(renewal).bytes(seed).bytes(name.encode())
    return encode_frame(RENEW, id, w.done())


def encode_answer(id: int, data: bytes) -> bytes:
    """Return the frame that answers a question for a name."""
    return encode_frame(ANSWER, id, data)


class Hello(NamedTuple):
    """The guest is there and speaks this generation; what it found to be true of itself."""

    generation: int
    facts: bytes = b""


class Started(NamedTuple):
    """The program has been executed; its process number inside."""

    pid: int


class Exited(NamedTuple):
    """A program has ended."""

    code: int
    signal: int
    flags: int
    user_us: int
    system_us: int
    peak_kib: int
    read_blocks: int
    written_blocks: int
    processes: int

    @property
    def disk_full(self) -> bool:
        """Whether the disk was full, by bytes or by inodes, when it ended badly."""
        return self.flags & 0b11 != 0

    @property
    def hits(self) -> tuple[str, ...]:
        """The limits that were reached, where only a kernel inside counts that."""
        return tuple(name for name, bit in (("memory", 4), ("pids", 8)) if self.flags & bit)


class Failed(NamedTuple):
    """A request could not be done."""

    errno: int
    step: str
    detail: bytes


class Data(NamedTuple):
    """Bytes of a stream."""

    stream: int
    data: bytes


class Close(NamedTuple):
    """The end of a stream."""

    stream: int


class Credit(NamedTuple):
    """Permission to send more of a stream."""

    stream: int
    allowed: int


class Pong(NamedTuple):
    """The guest is there."""


class Held(NamedTuple):
    """The guest says nothing more until it is told to."""


class Accepted(NamedTuple):
    """A program has connected to one of the doors inside, meaning this address."""

    door: int
    address: int
    port: int


class Asked(NamedTuple):
    """A question for a name, as a datagram."""

    question: bytes


class Refused(NamedTuple):
    """What the kernel inside says of a packet that it refused."""

    record: bytes


_OfRequests = Started | Exited | Failed | Data | Close | Credit | Pong | Held
Message = Hello | _OfRequests | Accepted | Asked | Refused


def decode_message(frame: Frame) -> Message:
    """Return what the guest said, or raise ProtocolViolation."""
    if frame.kind == EXITED:
        if len(frame.payload) != _EXITED.size:
            raise ProtocolViolation(f"end of a process in {len(frame.payload)} bytes")
        return Exited._make(_EXITED.unpack(frame.payload))
    r = Reader(frame.payload)
    message: Message
    match frame.kind:
        case 6:
            return Data(r.u8(), r.rest())
        case 7:
            message = Close(r.u8())
        case 8:
            message = Credit(r.u8(), r.u32())
        case 32:
            message = Hello(r.u8(), r.bytes(_MAX_FACTS))
        case 33:
            message = Started(r.u32())
        case 35:
            errno, step, detail = r.u32(), r.bytes(_MAX_TEXT), r.bytes(_MAX_TEXT)
            if errno > _MAX_ERRNO:
                raise ProtocolViolation(f"error number {errno}; the limit is {_MAX_ERRNO}")
            message = Failed(errno, step.decode("ascii", "replace"), detail)
        case 36:
            message = Pong()
        case 37:
            message = Held()
        case 38:
            message = Accepted(r.u8(), r.u32(), r.u16())
        case 39:
            question = r.rest()
            if len(question) > _MAX_QUESTION:
                raise ProtocolViolation(
                    f"a question of {len(question)} bytes; the limit is {_MAX_QUESTION}"
                )
            return Asked(question)
        case 40:
            record = r.rest()
            if len(record) > _MAX_RECORD:
                raise ProtocolViolation(
                    f"a record of {len(record)} bytes; the limit is {_MAX_RECORD}"
                )
            return Refused(record)
        case _:
            raise ProtocolViolation(f"message of unknown kind {frame.kind}")
    r.end()
    return message
