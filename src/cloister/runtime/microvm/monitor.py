"""Speaks with one QEMU over its monitor; every byte of it is taken for chosen by an attacker."""

from __future__ import annotations

import array
import asyncio
import contextlib
import itertools
import json
import socket
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from cloister.errors import GuestGone, ProtocolViolation

# QEMU's longest answers to what is asked here are a few hundred bytes.
_MAX_LINE = 64 * 1024
_MAX_PASSED = 1024
# On a busy host an emulated machine takes its time; one that never answers is given up.
_ANSWER_S = 120.0


class Monitor:
    """One connection; one question at a time."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket = ours
        ours.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._held = b""
        self._greeted = False
        self._turn = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._events: deque[dict[str, Any]] = deque(maxlen=_MAX_PASSED)

    async def ask(self, command: str, *, fd: int | None = None, **arguments: Any) -> Any:
        """Return the answer to one command; `fd` is handed over with it."""
        async with self._line_to_itself(command):
            if not self._greeted:
                await self._line()
                await self._exchange({"execute": "qmp_capabilities"}, None)
                self._greeted = True
            return await self._exchange({"execute": command, "arguments": arguments}, fd)

    async def until(self, event: str, status: str, *, refused: tuple[str, ...]) -> None:
        """Wait for an event with this status; one of `refused` is an error."""
        async with self._line_to_itself(event):
            while True:
                told = self._events.popleft() if self._events else await self._line()
                data = told.get("data")
                if told.get("event") != event or not isinstance(data, dict):
                    continue
                if data.get("status") == status:
                    return
                if data.get("status") in refused:
                    raise GuestGone(f"QEMU did not finish: {event} {status}", reason="machine")

    @contextlib.asynccontextmanager
    async def _line_to_itself(self, what: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(_ANSWER_S), self._turn:
                yield
        except TimeoutError:
            raise GuestGone(
                f"QEMU has said nothing of {what} for {_ANSWER_S:g} s; stop the sandbox",
                reason="hung",
            ) from None
        except OSError as error:
            raise GuestGone(f"QEMU is gone: {error}", reason="gone") from error

    async def _exchange(self, question: dict[str, Any], fd: int | None) -> Any:
        # Whoever asked before may have given up, and the answer to that come yet.
        number = next(self._numbers)
        packet = json.dumps({**question, "id": number}).encode() + b"\n"
        if fd is None:
            await self._loop.sock_sendall(self._socket, packet)
        else:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
            if self._socket.sendmsg([packet], rights) != len(packet):
                raise ProtocolViolation("QEMU does not read what it is told")
        for _ in range(_MAX_PASSED):
            answer = await self._line()
            if "event" in answer:
                self._events.append(answer)
            if answer.get("id") != number:
                continue
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                said = str(answer["error"])[:500]
                raise GuestGone(f"QEMU refused {question['execute']}: {said}", reason="machine")
        raise ProtocolViolation("QEMU does not answer what it is asked")

    async def _line(self) -> dict[str, Any]:
        while b"\n" not in self._held:
            data = await self._loop.sock_recv(self._socket, 16 * 1024)
            if not data:
                raise GuestGone("QEMU is gone", reason="gone")
            self._held += data
            if len(self._held) > _MAX_LINE:
                raise ProtocolViolation("QEMU says more than it may at once")
        line, _, self._held = self._held.partition(b"\n")
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ProtocolViolation("QEMU says what is not JSON") from error
        if not isinstance(value, dict):
            raise ProtocolViolation("QEMU says what is not an object")
        return value

    def close(self) -> None:
        """Let go of it; QEMU goes on without."""
        self._socket.close()
