"""The head of an answer and the first of its body in one write, so that a client wakes once."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Message, Send


class OneWrite:
    """A transport that holds one write back until the next, for one turn of the loop at most."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.transport = transport
        self._loop = loop
        self._is_head_next = False
        self._head: bytes | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def sending(self, send: Send) -> Send:
        """Return how an application sends, so that the heads of its answers are known."""

        async def send_known(message: Message) -> None:
            self._is_head_next = message["type"] == "http.response.start"
            await send(message)

        return send_known

    def write(self, data: bytes) -> None:
        """Write, or hold back the head of an answer; never a body, however long it is."""
        if self._head is not None:
            data, self._head = self._head + data, None
        elif self._is_head_next:
            self._is_head_next = False
            self._head = data
            self._loop.call_soon(self._write_head)
            return
        self.transport.write(data)

    def close(self) -> None:
        """Close after what was held back has been written."""
        self._write_head()
        self.transport.close()

    def _write_head(self) -> None:
        head, self._head = self._head, None
        if head is not None and not self.transport.is_closing():
            self.transport.write(head)
