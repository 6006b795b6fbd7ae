"""Connections to ports inside."""

from __future__ import annotations

import asyncio
import hashlib
import random

import pytest

from cloister import NotFound, RequestError, Sandbox

# Serves forever on a free port, which it prints; argv[1] says what it does with a connection.
SERVER = """
import hashlib, socket, sys, threading
def echo(c):
    while data := c.recv(65536): c.sendall(data)
def digest(c):
    seen = hashlib.sha256()
    while data := c.recv(65536): seen.update(data)
    c.sendall(seen.hexdigest().encode())
def speak(c):
    c.sendall(bytes(8 << 20))
def serve(c):
    with c: globals()[sys.argv[1]](c)
listener = socket.create_server(("127.0.0.1", 0), backlog=64)
print(listener.getsockname()[1], flush=True)
while True: threading.Thread(target=serve, args=(listener.accept()[0],)).start()
"""


async def serve(sandbox: Sandbox, what: str) -> int:
    server = await sandbox.start(["python3", "-c", SERVER, what])
    return int(await server.stdout.read())


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


async def test_a_port_inside_answers(sandbox: Sandbox) -> None:
    reader, writer = await sandbox.dial(await serve(sandbox, "echo"))
    for word in (b"one", b"two"):
        writer.write(word)
        await writer.drain()
        assert await reader.readexactly(3) == word
    await close(writer)


async def test_the_end_of_one_direction_leaves_the_other_open(sandbox: Sandbox) -> None:
    reader, writer = await sandbox.dial(await serve(sandbox, "digest"))
    data = random.Random(1).randbytes(5 << 20)
    writer.write(data)
    writer.write_eof()
    assert (await reader.read()).decode() == hashlib.sha256(data).hexdigest()
    await close(writer)


async def test_much_comes_back_whole(sandbox: Sandbox) -> None:
    reader, writer = await sandbox.dial(await serve(sandbox, "echo"))
    data = random.Random(2).randbytes(12 << 20)

    async def send() -> None:
        writer.write(data)
        await writer.drain()
        writer.write_eof()

    sending = asyncio.create_task(send())
    assert await reader.read() == data
    await sending
    await close(writer)


async def test_the_end_of_the_server_is_the_end_of_the_stream(sandbox: Sandbox) -> None:
    reader, writer = await sandbox.dial(await serve(sandbox, "speak"))
    assert len(await reader.read()) == 8 << 20
    await close(writer)


async def test_many_connections_at_once(sandbox: Sandbox) -> None:
    port = await serve(sandbox, "echo")

    async def ask(number: int) -> None:
        reader, writer = await sandbox.dial(port)
        writer.write(b"%d" % number)
        writer.write_eof()
        assert await reader.read() == b"%d" % number
        await close(writer)

    await asyncio.gather(*(ask(number) for number in range(40)))


async def test_nobody_listening_is_not_found(sandbox: Sandbox) -> None:
    port = await serve(sandbox, "echo")
    with pytest.raises(NotFound):
        await sandbox.dial(1 if port != 1 else 2)
    _, writer = await sandbox.dial(port)
    await close(writer)


@pytest.mark.parametrize("port", [0, -1, 65_536, "80", True, 1.5])
async def test_a_port_that_cannot_be_is_the_callers_error(sandbox: Sandbox, port: object) -> None:
    with pytest.raises(RequestError):
        await sandbox.dial(port)  # type: ignore[arg-type]
    _, writer = await sandbox.dial(await serve(sandbox, "echo"))
    await close(writer)


async def test_a_port_of_the_host_is_not_a_port_inside(sandbox: Sandbox) -> None:
    reached = asyncio.Event()
    server = await asyncio.start_server(lambda r, w: (reached.set(), w.close()), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(NotFound):
            await sandbox.dial(port)
        assert not reached.is_set()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await reached.wait()
        await close(writer)


async def test_a_connection_ends_with_its_sandbox(make) -> None:
    async with make() as sandbox:
        reader, writer = await sandbox.dial(await serve(sandbox, "echo"))
    assert await reader.read() == b""
    await close(writer)
