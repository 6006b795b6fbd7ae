"""What is asked of a server: values in JSON, bytes as streams, errors as the classes they were."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_from_bytes, urlencode

from cloister.errors import CloisterError, HostError
from cloister.node.control_channel import error_from
from cloister.remote.http import Answer, Body, Connections, ServerLost
from cloister.remote.place import Place

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_MOST_ANSWER_BYTES = 2**31
_MOST_MESSAGE_BYTES = 2**20

_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Place, Client]]
_clients = weakref.WeakKeyDictionary()


class Client:
    """Talks to one server, for one event loop."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._connections = Connections(place)
        self._keeper: AsyncGenerator[None, None] | None = None
        self._headers = {} if place.token is None else {"authorization": f"Bearer {place.token}"}

    @classmethod
    def of(cls, place: Place) -> Client:
        """Return the client of the running loop for a server."""
        known = _clients.setdefault(asyncio.get_running_loop(), {})
        client = known.get(place)
        if client is None:
            client = known[place] = cls(place)
            client._keeper = _close_with_loop(client)
        return client

    def close(self) -> None:
        """Close the connections that are kept."""
        self._connections.close()

    async def ask(
        self, method: str, path: str, value: Any = None, **query: str | int | bool | None
    ) -> Any:
        """Ask for something and return the answer's JSON, or raise the error it is."""
        body = None if value is None else json.dumps(value).encode()
        answer = await self._ask(method, _target(path, query), body, "application/json")
        data = await _whole(answer)
        return json.loads(data) if data else None

    async def send(
        self, method: str, path: str, body: Body, query: Mapping[str, Any] | None = None
    ) -> Any:
        """Send bytes and return the answer's JSON, or raise the error it is."""
        target = _target(path, query or {})
        data = await _whole(await self._ask(method, target, body, "application/octet-stream"))
        return json.loads(data) if data else None

    async def stream(
        self, path: str, query: Mapping[str, Any] | None = None, *, body: bytes | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of an answer as they come; with a body it is asked for with POST."""
        method = "GET" if body is None else "POST"
        kind = "application/octet-stream"
        answer = await self._ask(method, _target(path, query or {}), body, kind)
        async with contextlib.aclosing(answer.chunks) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _ask(self, method: str, target: str, body: Body, kind: str) -> Answer:
        headers = {**self._headers, **({"content-type": kind} if body is not None else {})}
        answer = await self._connections.ask(method, target, headers, body)
        if answer.status >= 300:
            raise _error(await _whole(answer), answer.status)
        return answer

    @contextlib.asynccontextmanager
    async def converse(
        self, path: str, query: Mapping[str, Any] | None = None
    ) -> AsyncIterator[ClientConnection]:
        """Open a WebSocket for as long as the block."""
        socket = await self.open_socket(path, query)
        try:
            yield socket
        finally:
            await socket.close()

    async def open_socket(
        self, path: str, query: Mapping[str, Any] | None = None
    ) -> ClientConnection:
        """Open a WebSocket; whoever asked for it closes it."""
        # Imported when needed: most of what is asked is a request and an answer.
        from websockets.asyncio.client import connect, unix_connect
        from websockets.exceptions import InvalidHandshake, InvalidStatus

        place = self.place
        uri = f"{'wss' if place.is_tls else 'ws'}://{place.authority}{_target(path, query or {})}"
        options: dict[str, Any] = {
            "additional_headers": self._headers,
            "max_size": _MOST_MESSAGE_BYTES,
            "compression": None,
            "proxy": None,
        }
        try:
            if place.socket is not None:
                return await unix_connect(place.socket, uri, **options)
            return await connect(uri, **options)
        except InvalidStatus as refused:
            body = bytes(refused.response.body or b"")
            raise _error(body, refused.response.status_code) from None
        except (OSError, InvalidHandshake) as error:
            raise ServerLost(f"the server does not answer: {error}") from error


def _close_with_loop(client: Client) -> AsyncGenerator[None, None]:
    """Close a client when its loop shuts down, which closes suspended generators last of all."""

    async def wait() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            client.close()
            # The transports close in the next turn of the loop, which is about to be the last.
            await asyncio.sleep(0)

    keeper = wait()
    # Up to its yield, by hand: only a generator that has begun is closed by the loop.
    with contextlib.suppress(StopIteration):
        keeper.__anext__().send(None)
    return keeper


def _target(path: str, query: Mapping[str, Any]) -> str:
    given = {key: value for key, value in query.items() if value is not None}
    if not given:
        return path
    words = []
    for key, value in given.items():
        if isinstance(value, bytes):
            words.append(f"{key}={quote_from_bytes(value, safe='/')}")
        else:
            shown = str(value).lower() if isinstance(value, bool) else value
            words.append(urlencode({key: shown}))
    return f"{path}?{'&'.join(words)}"


async def _whole(answer: Answer) -> bytes:
    parts, size = [], 0
    async with contextlib.aclosing(answer.chunks) as chunks:
        async for chunk in chunks:
            size += len(chunk)
            if size > _MOST_ANSWER_BYTES:
                raise HostError(f"the server's answer is larger than {_MOST_ANSWER_BYTES} bytes")
            parts.append(chunk)
    return b"".join(parts)


def problem_error(problem: object) -> CloisterError:
    """Return the error that a server described, as the kind it was there."""
    if not isinstance(problem, dict) or "error" not in problem:
        return HostError("the server answered with an error that it did not describe")
    found = problem.get("details")
    details = dict(found) if isinstance(found, dict) else {}
    message = details.pop("message", problem.get("detail"))
    number = details.pop("kernel_errno", None)
    error = error_from({"kind": problem["error"], "message": message, "details": details})
    if isinstance(number, int):
        # What the kernel there said, for those who ask an error for its cause.
        error.__cause__ = OSError(number, os.strerror(number))
    return error


def _error(body: bytes, status: int) -> CloisterError:
    try:
        return problem_error(json.loads(body))
    except ValueError:
        return HostError(f"the server answered with {status}, and not in words of Cloister's")
