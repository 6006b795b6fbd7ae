"""A connection to a port inside, carried by a WebSocket."""

from __future__ import annotations

import asyncio
import json
import socket as sockets
from typing import Any

DIAL_BYTES = 64 * 1024


async def carry(socket: Any, end: sockets.socket) -> None:
    """Copy between a WebSocket and the pair that the caller's stream is the other end of."""
    reader, writer = await asyncio.open_connection(sock=end, limit=4 * DIAL_BYTES)

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
        writer.close()
        await socket.close()
