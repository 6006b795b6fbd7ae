"""Work for a client that may go away before it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import HTTPConnection, Request
from starlette.websockets import WebSocket

from cloister.errors import RequestError

Value = TypeVar("Value")

# Most work is done before it is worth listening for a client that goes away.
_PATIENCE_S = 0.05


async def unless_gone(connection: HTTPConnection, work: Coroutine[Any, Any, Value]) -> Value:
    """Do the work; cancel it when the client goes away, because nobody would hear of it."""
    if not isinstance(connection, Request):
        return await work
    task = asyncio.ensure_future(work)
    listening: asyncio.Task[None] | None = None
    try:
        done, _ = await asyncio.wait({task}, timeout=_PATIENCE_S)
        if not done:
            listening = asyncio.create_task(_wait_gone(connection))
            await asyncio.wait({task, listening}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RequestError("the client went away")
        return task.result()
    finally:
        if listening is not None:
            listening.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _wait_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


async def wait_closed(websocket: WebSocket) -> None:
    """Wait until the client closes; what it says before that means nothing here."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        continue
