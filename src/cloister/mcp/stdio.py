"""Serves one client over standard input and output, and ends when the client is gone."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import mcp_types as wire
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server import Server
from mcp.shared.message import SessionMessage

from cloister.errors import RequestError
from cloister.mcp.desks import Desks

# One message; larger ones end the connection instead of filling memory.
_MAXIMUM_LINE_BYTES = 64 * 2**20

Incoming = SessionMessage | Exception


async def serve_stdio(server: Server[Desks]) -> None:
    """Serve until the client closes our standard input, or reads our output no more.

    Not the SDK's own transport: its reader is a thread that a signal cannot interrupt.
    """
    async with _wire() as (reader, writer):
        to_server, from_client = anyio.create_memory_object_stream[Incoming](0)
        to_client, from_server = anyio.create_memory_object_stream[SessionMessage](0)
        async with anyio.create_task_group() as group:
            group.start_soon(_read, reader, to_server)
            group.start_soon(_write, writer, from_server, group.cancel_scope)
            await server.run(from_client, to_client, server.create_initialization_options())
            group.cancel_scope.cancel()


async def _read(reader: asyncio.StreamReader, to_server: MemoryObjectSendStream[Incoming]) -> None:
    async with to_server:
        while True:
            try:
                line = await reader.readline()
            except ValueError:
                print("cloister mcp: a message is too large; leaving", file=sys.stderr)
                return
            if not line:
                return
            try:
                message = wire.jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError as error:
                await to_server.send(error)
            else:
                await to_server.send(SessionMessage(message))


async def _write(
    writer: asyncio.StreamWriter,
    from_server: MemoryObjectReceiveStream[SessionMessage],
    whole: anyio.CancelScope,
) -> None:
    async with from_server:
        async for message in from_server:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                writer.write(text.encode() + b"\n")
                await writer.drain()
            except ConnectionError:
                # Nobody reads: the client is gone, whoever else holds its end of our input.
                whole.cancel()
                return


@asynccontextmanager
async def _wire() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Take standard input and output for the protocol; what prints by mistake goes to stderr."""
    ours_in, ours_out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_MAXIMUM_LINE_BYTES)
    try:
        incoming, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours_in, "rb", buffering=0)
        )
        outgoing, protocol = await loop.connect_write_pipe(
            lambda: asyncio.streams.FlowControlMixin(loop), os.fdopen(ours_out, "wb", buffering=0)
        )
    except ValueError as error:
        raise RequestError(
            "standard input and output must be pipes, sockets or a terminal; "
            "let an MCP client start this command, or use --listen"
        ) from error
    writer = asyncio.StreamWriter(outgoing, protocol, None, loop)
    try:
        yield reader, writer
    finally:
        incoming.close()
        outgoing.close()
