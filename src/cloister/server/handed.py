"""A module that a client hands over by a WebSocket: run there, and ended with the connection.

The client sends the call as JSON, then the module and the standard input as binary messages. It is
sent what the module prints, as it comes, the first byte the stream; then {"ended"} or {"error"}.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from cloister.errors import CloisterError, Exhausted, RequestError
from cloister.sandbox.modules import MAX_MODULE_BYTES, MAX_STDIN_BYTES
from cloister.server.disconnect import wait_closed
from cloister.server.endpoint import new_request_id
from cloister.server.problems import problem_of
from cloister.server.programs import result_of
from cloister.server.resident import Resident
from cloister.server.tenancy import TenantName
from cloister.server.traces import inside

# Of one tenant, in the server's memory at once.
_MOST_BYTES = 4 * MAX_MODULE_BYTES
_held: Counter[TenantName] = Counter()


class HandedModule(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A call; without `module_bytes`, `name` is the path of a module inside."""

    name: str
    arguments: list[str] = []
    module_bytes: int | None = None
    stdin_bytes: int = 0
    cwd: str | None = None
    env: dict[str, str] | None = None
    timeout: float | str | None = None

    def size_bytes(self) -> int:
        """Return how much follows."""
        for what, count, most in (
            ("module", self.module_bytes or 0, MAX_MODULE_BYTES),
            ("standard input", self.stdin_bytes, MAX_STDIN_BYTES),
        ):
            if not 0 <= count <= most:
                raise RequestError(f"the {what} has {count} bytes; the most is {most}")
        return (self.module_bytes or 0) + self.stdin_bytes


async def converse_module(resident: Resident, websocket: WebSocket, wait_s: float) -> None:
    """Run what the client hands over, and tell it what comes of it."""
    await websocket.accept()
    size = 0
    try:
        async with asyncio.timeout(wait_s):
            first = await websocket.receive_text()
        wanted = _parsed(first)
        size = _reserved(resident.tenant, wanted)
        data = await _taken(websocket, size, wait_s)
        running = asyncio.create_task(_run(resident, websocket, wanted, data))
        leaving = asyncio.create_task(wait_closed(websocket))
        try:
            await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await _tell(websocket, {"ended": running.result()})
                await websocket.close()
        finally:
            running.cancel()
            leaving.cancel()
            await asyncio.gather(running, leaving, return_exceptions=True)
    except CloisterError as error:
        await _tell(websocket, {"error": problem_of(error, new_request_id())})
        await websocket.close()
    except (TimeoutError, WebSocketDisconnect, KeyError, OSError):
        # The client has gone, or has nothing to say.
        return
    finally:
        _held[resident.tenant] -= size


def _parsed(text: str) -> HandedModule:
    try:
        return msgspec.json.decode(text, type=HandedModule)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"the call is not what is expected: {error}") from None


def _reserved(tenant: TenantName, wanted: HandedModule) -> int:
    size = wanted.size_bytes()
    if _held[tenant] + size > _MOST_BYTES:
        raise Exhausted(
            f"modules and input of this tenant that are under way have {_held[tenant]} bytes, and "
            f"may have {_MOST_BYTES} in all; wait for one",
            limit="requests",
        )
    _held[tenant] += size
    return size


async def _taken(websocket: WebSocket, size: int, wait_s: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        async with asyncio.timeout(wait_s):
            data += await websocket.receive_bytes()
    if len(data) > size:
        raise RequestError(f"{len(data)} bytes were sent; {size} were announced")
    return bytes(data)


async def _run(
    resident: Resident, websocket: WebSocket, wanted: HandedModule, data: bytes
) -> dict[str, Any]:
    async def say(stream: int, said: bytes) -> None:
        await websocket.send_bytes(bytes((stream,)) + said)

    at = wanted.module_bytes or 0
    result = await resident.sandbox.run_module(
        None if wanted.module_bytes is None else data[:at],
        wanted.arguments,
        name=wanted.name,
        cwd=wanted.cwd,
        env=inside(wanted.env),
        timeout=wanted.timeout,
        stdin=data[at:],
        # It was told as it came; who wants to keep it does.
        output=1,
        say=say,
    )
    shown: dict[str, Any] = msgspec.to_builtins(result_of(result))
    return {**shown, "stdout": "", "stderr": ""}


async def _tell(websocket: WebSocket, said: dict[str, Any]) -> None:
    await websocket.send_text(msgspec.json.encode(said).decode())
