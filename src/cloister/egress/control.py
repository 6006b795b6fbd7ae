"""Frames between the gateway and its owner: one JSON object each, with descriptors beside it."""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from cloister.errors import HostError

MOST_BYTES = 64 * 1024
# The six doors of a sandbox, and the document that says what it may reach.
MOST_FDS = 7
_MOST_DOCUMENT_BYTES = 8 * 1024 * 1024


class BadFrame(HostError):
    """What came is no frame; the process at the other end is not what it should be."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends, ours first; ours does not block."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs


def send(end: socket.socket, frame: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one frame whole, or raise BlockingIOError or another OSError."""
    data = json.dumps(frame, separators=(",", ":")).encode()
    if len(data) > MOST_BYTES:
        raise BadFrame(f"a frame of {len(data)} bytes; the most is {MOST_BYTES}")
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    end.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)


def receive(end: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next frame and its descriptors, or None when the other end is gone."""
    data, fds, flags, _ = socket.recv_fds(end, MOST_BYTES, MOST_FDS, socket.MSG_CMSG_CLOEXEC)
    if not data:
        return None
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise BadFrame("a frame larger than any may be")
        frame = json.loads(data)
        if not isinstance(frame, dict):
            raise BadFrame("a frame that is no object")
    except (ValueError, RecursionError, BadFrame) as error:
        for fd in fds:
            os.close(fd)
        raise BadFrame(f"not a frame: {error}") from error
    return frame, fds


def document(content: Mapping[str, Any]) -> int:
    """Return a descriptor of something too long for a frame."""
    fd = os.memfd_create("cloister-egress", os.MFD_CLOEXEC)
    try:
        data = memoryview(json.dumps(content).encode())
        at = 0
        while at < len(data):
            at += os.pwrite(fd, data[at:], at)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_document(fd: int) -> dict[str, Any]:
    """Return what a document holds."""
    size = os.fstat(fd).st_size
    if size > _MOST_DOCUMENT_BYTES:
        raise BadFrame(f"a document of {size} bytes; the most is {_MOST_DOCUMENT_BYTES}")
    parts, at = [], 0
    while at < size:
        part = os.pread(fd, size - at, at)
        if not part:
            raise BadFrame("a document that ends early")
        parts.append(part)
        at += len(part)
    try:
        content = json.loads(b"".join(parts))
    except ValueError as error:
        raise BadFrame(f"not a document: {error}") from error
    if not isinstance(content, dict):
        raise BadFrame("a document that is no object")
    return content
