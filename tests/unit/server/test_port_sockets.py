"""A message of a server inside in crumbs: held as one, and others have their turns meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

from cloister.sandbox import Sandbox
from cloister.server.port_sockets import Opening, carry_socket

_FRAGMENTS = 40_000


async def test_a_message_in_crumbs_arrives_whole_and_holds_nobody_up() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        protocol = ServerProtocol()
        while not (events := protocol.events_received()):
            protocol.receive_data(await reader.read(65_536))
        protocol.send_response(protocol.accept(events[0]))  # type: ignore[arg-type]
        crumb = Frame(Opcode.CONT, b"ab", fin=False).serialize(mask=False)
        writer.writelines(protocol.data_to_send())
        writer.write(Frame(Opcode.BINARY, b"", fin=False).serialize(mask=False))
        writer.write(crumb * _FRAGMENTS)
        writer.write(Frame(Opcode.CONT, b"", fin=True).serialize(mask=False))
        await writer.drain()
        await reader.read()
        writer.close()
        await writer.wait_closed()
        served.set()

    served = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    class Near(Sandbox):
        async def dial(self, port: int) -> Any:
            return await asyncio.open_connection("127.0.0.1", port)

    messages: asyncio.Queue[Any] = asyncio.Queue()
    messages.put_nowait({"type": "websocket.connect"})
    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        if message["type"] == "websocket.send":
            got.set_result(message["bytes"])
            messages.put_nowait({"type": "websocket.disconnect", "code": 1000})

    turns = 0

    async def others() -> None:
        nonlocal turns
        while not got.done():
            turns += 1
            await asyncio.sleep(0)

    async with server, asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(others())
        await carry_socket(Near(), port, Opening(b"/", [], []), messages.get, send)
        await served.wait()
    assert got.result() == b"ab" * _FRAGMENTS
    # 160 KB: a turn for each few of them.
    assert turns > _FRAGMENTS * 4 // 4096
