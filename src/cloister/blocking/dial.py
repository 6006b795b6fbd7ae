"""A connection to a port inside as an ordinary socket, for code that knows no event loop."""

from __future__ import annotations

import asyncio
import socket

from cloister.errors import CloisterError
from cloister.sandbox import Sandbox

_CHUNK = 64 * 1024

# Connections are carried by tasks that nobody waits for: kept here, or they would be collected.
_carriers: set[asyncio.Task[None]] = set()


async def dial(sandbox: Sandbox, port: int) -> socket.socket:
    """Connect, and return the near end of a pair whose far end the loop carries."""
    reader, writer = await sandbox.dial(port)
    ours, theirs = socket.socketpair()
    carrier = asyncio.create_task(_carry(theirs, reader, writer))
    _carriers.add(carrier)
    carrier.add_done_callback(_carriers.discard)
    return ours


async def _carry(
    end: socket.socket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Copy both ways until both have ended: the caller's socket is used without the loop."""
    near_reader, near_writer = await asyncio.open_connection(sock=end)
    try:
        await asyncio.gather(_copy(reader, near_writer), _copy(near_reader, writer))
    except (OSError, CloisterError):
        # One side has gone; closing both below is how the other learns of it.
        return
    finally:
        writer.close()
        near_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
