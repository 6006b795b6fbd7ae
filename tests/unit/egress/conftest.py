"""A whole intake on loopback sockets, and a server behind it that remembers what it was sent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import pytest

from cloister.egress import control
from cloister.egress.bounds import Bounds
from cloister.egress.intake import Intake
from cloister.egress.pipes import Pipes
from cloister.egress.reports import Reports
from cloister.egress.upstream import Upstream
from cloister.egress.ward import Ward
from cloister.policy import Egress, Policy

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


@dataclass
class FarEnd:
    """A server on loopback: everything that reached it."""

    port: int
    answer: bytes = ANSWER
    received: list[bytes] = field(default_factory=list)
    connections: int = 0
    reset: bool = False


@dataclass
class Doors:
    """The ports of the intake, and what its owner was told."""

    http: int
    socks: int
    names: int
    names_tcp: int
    owner: socket.socket
    ward: Ward
    told: list[dict[str, Any]] = field(default_factory=list)

    async def events(self) -> list[dict[str, Any]]:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with contextlib.suppress(BlockingIOError):
            while (received := control.receive(self.owner)) is not None:
                self.told += received[0].get("events", [])
        return self.told

    async def denied(self) -> list[str]:
        return [each["reason"] for each in await self.events() if each.get("allowed") is False]


@pytest.fixture
async def far_end() -> AsyncIterator[FarEnd]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end.connections += 1
        end.received.append(b"")
        at = len(end.received) - 1
        try:
            while data := await reader.read(65_536):
                end.received[at] += data
                if b"\r\n\r\n" in end.received[at] and end.answer:
                    writer.write(end.answer)
                    await writer.drain()
                    if b"close" in end.answer:
                        break
        except ConnectionError:
            end.reset = True
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    end = FarEnd(server.sockets[0].getsockname()[1])
    yield end
    server.close()


Open = Callable[..., AbstractAsyncContextManager[Doors]]


@pytest.fixture
def opened() -> Open:
    @contextlib.asynccontextmanager
    async def open_doors(
        *allow: str,
        private: tuple[str, ...] = (),
        budget: dict[str, Any] | None = None,
        rules: tuple[dict[str, Any], ...] = (),
        answers: dict[str, list[str]] | None = None,
        bounds: Bounds | None = None,
    ) -> AsyncIterator[Doors]:
        bounds = bounds or Bounds()
        ours, theirs = control.pair()
        theirs.setblocking(False)
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
        datagrams = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
        for each in datagrams:
            each.bind(("127.0.0.1", 0))
        tcp, names_tcp, http, socks = listeners
        names, refused = datagrams
        upstream = Upstream(bounds, answers)
        pipes = Pipes()
        loop = asyncio.get_running_loop()
        ward = Ward(
            "box",
            Policy(egress=Egress(allow, private, rules, budget)),
            {},
            Reports(theirs, loop),
            upstream,
            pipes,
            bounds,
        )
        order = (tcp, names, names_tcp, http, socks, refused)
        intake = Intake(ward, [os.dup(each.fileno()) for each in order])
        intake.begin()
        ports = [each.getsockname()[1] for each in (http, socks, names, names_tcp)]
        try:
            yield Doors(*ports, ours, ward)
        finally:
            intake.close()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            upstream.close()
            pipes.close()
            for each in (*listeners, *datagrams, ours, theirs):
                each.close()

    return open_doors


async def talk(port: int, *parts: bytes) -> bytes:
    """Send parts, each after an answer to the one before; return all that came until the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    seen = b""
    try:
        for at, part in enumerate(parts):
            writer.write(part)
            await writer.drain()
            if at + 1 < len(parts):
                seen += await asyncio.wait_for(reader.read(65_536), 5)
        seen += await asyncio.wait_for(reader.read(), 5)
    except ConnectionError:
        seen += b"<reset>"
    finally:
        writer.close()
    return seen


@pytest.fixture
def talks() -> Callable[..., Any]:
    return talk
