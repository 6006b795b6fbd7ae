"""A connection to a port inside, carried by a WebSocket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

DIAL_BYTES = 64 * 1024


def begin_carrying(
    socket: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> asyncio.Task[None]:
    """Copy between a WebSocket and the pair that the caller's stream is the other end of."""
    task = asyncio.create_task(_carry(socket, reader, writer))

    def close(_: object) -> None:
        # Of a task that is cancelled before its first step, nothing runs that could close these.
        writer.close()
        socket.transport.abort()

    task.add_done_callback(close)
    return task


async def _carry(socket: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:

    async def inward() -> None:
        while data := await reader.read(DIAL_BYTES):
            await socket.send(data)
        await socket.send(json.dumps({"closed": True}))

    sending = asyncio.create_task(inward())
    try:
        async for message in socket:
            if isinstance(message, bytes):
                writer.write(message)
                await writer.drain()
            elif writer.can_write_eof():
                writer.write_eof()
    except Exception:
        # Either end is gone; the other is told by the close.
        return
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await socket.close()
