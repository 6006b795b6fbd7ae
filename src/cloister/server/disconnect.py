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
    task = asyncio.current_task()
    if not isinstance(connection, Request) or task is None:
        return await work
    watch = _Watch(connection, task)
    try:
        value = await work
    except asyncio.CancelledError:
        if watch.end() and task.uncancel() == 0:
            raise RequestError("the client went away") from None
        raise
    except BaseException:
        if watch.end():
            task.uncancel()
        raise
    if watch.end():
        # It was done before it heard that it was cancelled.
        task.uncancel()
    return value


class _Watch:
    """Listens for a client that goes away, and then cancels what is done for it."""

    def __init__(self, request: Request, task: asyncio.Task[Any]) -> None:
        self._request = request
        self._task = task
        self._has_cancelled = False
        self._listening: asyncio.Task[None] | None = None
        self._patience = asyncio.get_running_loop().call_later(_PATIENCE_S, self._listen)

    def end(self) -> bool:
        """Listen no more; whether it has cancelled anything."""
        self._patience.cancel()
        if self._listening is not None:
            self._listening.remove_done_callback(self._gone)
            self._listening.cancel()
        return self._has_cancelled

    def _listen(self) -> None:
        self._listening = asyncio.ensure_future(_wait_gone(self._request))
        self._listening.add_done_callback(self._gone)

    def _gone(self, listening: asyncio.Task[None]) -> None:
        if not listening.cancelled():
            # A connection that cannot be read any more is one that is gone.
            listening.exception()
            self._has_cancelled = True
            self._task.cancel()


async def _wait_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


async def wait_closed(websocket: WebSocket) -> None:
    """Wait until the client closes; what it says before that means nothing here."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        continue
