"""Messages between two processes of one user: JSON objects of bounded length, with descriptors."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

from cloister.errors import CloisterError, HostError, RequestError

VERSION = 2
# A command line may be as long as the kernel lets one be: 2 MiB, and JSON escapes make it longer.
LONGEST_BYTES = 16 * 1024 * 1024
_MOST_DESCRIPTORS = 4
_HEAD = struct.Struct("!I")
_CREDENTIALS = struct.Struct("3i")
_PIECE = 256 * 1024


class ChannelClosed(HostError):
    """The other process has gone, or has said all it had to say."""


class Channel:
    """One end of a connection; each message is four bytes of length and that many of JSON."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()

    @property
    def peer(self) -> tuple[int, int]:
        """Who is at the other end, as the kernel knows it: process and user."""
        size = _CREDENTIALS.size
        found = self._end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, uid, _ = _CREDENTIALS.unpack(found)
        return pid, uid

    async def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send one message; the descriptors stay the caller's own too."""
        body = json.dumps(message).encode()
        if len(body) > LONGEST_BYTES:
            raise RequestError(
                f"a message of {len(body)} bytes is longer than the {LONGEST_BYTES} that may be "
                "sent; send a shorter command"
            )
        async with self._sending:
            await self._send(memoryview(_HEAD.pack(len(body)) + body), list(descriptors))

    async def _send(self, view: memoryview, descriptors: list[int]) -> None:
        while view:
            try:
                sent = socket.send_fds(self._end, [view[:_PIECE]], descriptors)
            except (BlockingIOError, InterruptedError):
                await self._wait(self._loop.add_writer, self._loop.remove_writer)
                continue
            except OSError as error:
                raise ChannelClosed(f"the other process has gone: {error.strerror}") from error
            view, descriptors = view[sent:], []

    async def receive(self) -> tuple[dict[str, Any], list[int]]:
        """Return the next message and its descriptors, which are then the caller's to close."""
        descriptors: list[int] = []
        try:
            (length,) = _HEAD.unpack(await self._read(_HEAD.size, descriptors))
            if length > LONGEST_BYTES:
                raise RequestError(f"a message of {length} bytes; {LONGEST_BYTES} may be sent")
            return _parse(await self._read(length, descriptors)), descriptors
        except BaseException:
            close_all(descriptors)
            raise

    async def _read(self, count: int, descriptors: list[int]) -> bytes:
        found = bytearray()
        while len(found) < count:
            try:
                piece, passed, flags, _ = socket.recv_fds(
                    self._end,
                    min(count - len(found), _PIECE),
                    _MOST_DESCRIPTORS,
                    socket.MSG_CMSG_CLOEXEC,
                )
            except (BlockingIOError, InterruptedError):
                await self._wait(self._loop.add_reader, self._loop.remove_reader)
                continue
            except OSError as error:
                raise ChannelClosed(f"the other process has gone: {error.strerror}") from error
            descriptors += passed
            if flags & socket.MSG_CTRUNC or len(descriptors) > _MOST_DESCRIPTORS:
                raise RequestError(f"more than {_MOST_DESCRIPTORS} descriptors in one message")
            if not piece:
                raise ChannelClosed("the other process closed the connection")
            found += piece
        return bytes(found)

    async def _wait(self, watch: Any, unwatch: Any) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        watch(self._end.fileno(), _settle, ready)
        try:
            await ready
        finally:
            if self._end.fileno() >= 0:
                unwatch(self._end.fileno())

    def close(self) -> None:
        """Say no more and hear no more."""
        if self._end.fileno() >= 0:
            self._loop.remove_reader(self._end.fileno())
            self._loop.remove_writer(self._end.fileno())
        self._end.close()


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors that came with a message."""
    for descriptor in descriptors:
        os.close(descriptor)


def _parse(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"a message that is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise RequestError("a message that is not a JSON object")
    return message


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return an error as a message; what is no error of ours is told as one of the host's."""
    if not isinstance(error, CloisterError):
        return {"kind": "HostError", "message": f"unexpected {type(error).__name__}: {error}"}
    plain = {
        name: value
        for name, value in vars(error).items()
        if isinstance(value, str | int | None) and name != "message"
    }
    return {"kind": type(error).__name__, "message": error.message, "details": plain}


def error_from(found: object) -> CloisterError:
    """Return the error that the other process described, as the kind it was there."""
    from cloister import errors

    if not isinstance(found, dict):
        return HostError("the other process answered with an error it did not describe")
    message = str(found.get("message", "no message"))
    kind = getattr(errors, str(found.get("kind")), HostError)
    if not (isinstance(kind, type) and issubclass(kind, CloisterError)):
        kind = HostError
    error = kind.__new__(kind, message)
    details = found.get("details")
    error.__dict__.update(details if isinstance(details, dict) else {}, message=message)
    try:
        str(error)
    except AttributeError:
        # Of another version, with other details: its words are worth more than its kind.
        return HostError(message)
    return error
