"""The questions of this process that wait for a person, where its other processes find them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pwd
import secrets
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.errors import RequestError
from cloister.model import parse_duration, quote
from cloister.model.approvals import Answer, Question, escape, parse_how
from cloister.node.control_place import listen_at
from cloister.runtime.namespace.instance import runtime_directory

MOST_LINE_BYTES = 256 * 1024
_REQUEST_S = 10.0
_MOST_PEERS = 16
_LONGEST_GRANT_S = 24 * 3600.0
_PEER = struct.Struct("3i")


@dataclass(slots=True)
class Waiting:
    """One question: of which sandbox, until when, and the snapshot that was taken before it."""

    number: int
    sandbox: str
    question: Question
    expires_at: float
    answered: asyncio.Future[Answer]
    snapshot: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it for other processes."""
        return {
            "number": self.number,
            "sandbox": self.sandbox,
            "expires_at": self.expires_at,
            "snapshot": self.snapshot,
            "digest": self.question.digest,
            "lines": self.question.lines(),
            "summary": escape(self.question.summary()),
            "question": self.question.as_dict(),
        }


def approvals_directory() -> Path:
    """Return where the processes of this user with questions listen."""
    directory = runtime_directory() / "approvals"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def next_number() -> int:
    """Return a number that no other question of this user has had since the machine started."""
    path = approvals_directory() / "last"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(fd, "r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = file.read(32).strip()
        number = (int(text) if text.isdigit() else 0) + 1
        file.seek(0)
        file.write(f"{number}\n".encode())
        file.truncate()
    return number


class ApprovalQueue:
    """Listens while there is a question, to nobody but this user and root."""

    def __init__(self) -> None:
        self._waiting: dict[int, Waiting] = {}
        self._place: Path | None = None
        self._end: socket.socket | None = None
        self._peers: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def holding(self, waiting: Waiting) -> Iterator[None]:
        """Show a question for as long as this lasts."""
        self._waiting[waiting.number] = waiting
        try:
            self._listen()
            yield
        finally:
            del self._waiting[waiting.number]
            if not self._waiting:
                self._close()

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """What waits now, in the order in which it was asked."""
        return tuple(self._waiting.values())

    def answer(self, number: int, digest: object, given: Mapping[str, Any], who: str) -> None:
        """Answer a question; `digest` says what the answer is about."""
        waiting = self._waiting.get(number)
        if waiting is None or waiting.answered.done():
            raise RequestError(f"question {number} does not wait any more")
        if digest != waiting.question.digest:
            raise RequestError(f"question {number} is not about what was answered")
        reason = str(given.get("reason") or "")[:500]
        waiting.answered.set_result(made_answer(given.get("answer"), given.get("for"), who, reason))

    def _listen(self) -> None:
        if self._end is None:
            self._place = approvals_directory() / f"{os.getpid()}-{secrets.token_hex(4)}.sock"
            self._end = listen_at(self._place)
            asyncio.get_running_loop().add_reader(self._end, self._accept, self._end)

    def _close(self) -> None:
        place, self._place = self._place, None
        end, self._end = self._end, None
        if end is not None:
            asyncio.get_running_loop().remove_reader(end)
            end.close()
        if place is not None:
            place.unlink(missing_ok=True)

    def _accept(self, end: socket.socket) -> None:
        try:
            sock, _ = end.accept()
        except OSError:
            # They have gone already, or no descriptor is left: they come again.
            return
        if len(self._peers) >= _MOST_PEERS:
            sock.close()
            return
        peer = asyncio.get_running_loop().create_task(self._serve(sock))
        self._peers.add(peer)
        peer.add_done_callback(self._peers.discard)

    async def _serve(self, sock: socket.socket) -> None:
        try:
            sock.setblocking(False)
            reader, writer = await asyncio.open_unix_connection(sock=sock, limit=MOST_LINE_BYTES)
        except BaseException:
            sock.close()
            raise
        try:
            async with asyncio.timeout(_REQUEST_S):
                line = await reader.readline()
                writer.write(json.dumps(self._respond(line, writer)).encode() + b"\n")
                await writer.drain()
        except (OSError, TimeoutError, ValueError):
            # They are gone, or said what is no line: nothing was decided.
            return
        finally:
            writer.close()

    def _respond(self, line: bytes, writer: asyncio.StreamWriter) -> dict[str, Any]:
        try:
            who = _peer(writer.get_extra_info("socket"))
            request = json.loads(line)
            match request:
                case {"do": "list"}:
                    return {"ok": [each.as_dict() for each in self._waiting.values()]}
                case {"do": "answer", "number": int(number)}:
                    self.answer(number, request.get("digest"), request, who)
                    return {"ok": None}
                case _:
                    raise RequestError("a request that asks for nothing known")
        except (RequestError, ValueError) as error:
            return {"error": str(error)}


def made_answer(how: object, for_time: object, who: str, reason: str = "") -> Answer:
    """Return an answer that somebody gave, its time counted from now."""
    parsed = parse_how(how)
    if (parsed == "for_time") != (for_time is not None):
        raise RequestError('an answer for a time, and no other, says for how long: "for": "10m"')
    if parsed != "for_time":
        return Answer(parsed, who, reason)
    length_s = parse_duration(for_time, "for")
    if not 0 < length_s <= _LONGEST_GRANT_S:
        raise RequestError(f"for is {quote(for_time)}; it may be up to 24h")
    return Answer(parsed, who, reason, time.time() + length_s)


def _peer(sock: Any) -> str:
    """Return who is at the other end, by the kernel's word, or refuse them."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid, uid, _ = _PEER.unpack(raw)
    if uid not in (0, os.geteuid()):
        raise RequestError(f"user {uid} may not answer for user {os.geteuid()}")
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    return f"{name} (process {pid})"


def places() -> Iterator[Path]:
    """Yield where processes with questions listen, or listened."""
    yield from sorted(approvals_directory().glob("*.sock"))
