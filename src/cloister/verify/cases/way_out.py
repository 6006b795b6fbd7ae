"""A host that may be reached, a server that remembers what it was asked, and probes for the way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from cloister.errors import Unsupported
from cloister.node import Node
from cloister.policy import Egress, EgressRule
from cloister.sandbox import Sandbox
from cloister.verify.arena import Arena
from cloister.verify.case import NotApplicable, NotHeld

ALLOWED, OTHER = "allowed.test", "other.test"
# Every way in which a connection that leads nowhere is told to a program.
NOWHERE = ("ECONNRESET", "ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH", "EPERM", "EACCES")
# A gateway is a start of Python, which on a busy machine takes its time; nothing passes meanwhile.
_GATEWAY_S = 60.0
# What is allowed arrives, also on a busy machine after a flood of others; what waits has its bound.
_TWIN_S = 50.0
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nreached"

# Returns what came back, or raises what the kernel said.
ASK = """
def ask(host, port, words, through=None, within_s=10):
    with socket.create_connection(through or (host, int(port)), within_s) as sock:
        sock.sendall(words)
        answer = b""
        while part := sock.recv(4096):
            answer += part
        if not answer:
            raise ConnectionResetError(errno.ECONNRESET, "closed without a word")
        return answer.decode("latin-1")
"""


@dataclass
class WayOut:
    """A sandbox that may reach `ALLOWED` at one port, and what arrived there."""

    sandbox: Sandbox
    port: int
    arrived: list[bytes] = field(default_factory=list)
    # The addresses that connections came to the server from.
    peers: set[str] = field(default_factory=set)
    # Told of each request that arrived.
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def denied(self) -> list[str]:
        """What was denied, as host and port."""
        return [f"{each.host}:{each.port}" for each in (await self.sandbox.traffic()).denied]

    async def expect_reached(self, arena: Arena) -> None:
        """The twin: what is allowed arrives."""
        source = ASK + (
            "def attempt(host, port):\n"
            "    head = f'GET /twin HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n'\n"
            f"    return ask(host, port, head.encode(), within_s={_TWIN_S:g})"
        )
        got = arena.expect_allowed(
            await arena.attempt(self.sandbox, source, ALLOWED, str(self.port))
        )
        arena.expect("reached" in got, f"the allowed host answered {got!r}")
        twins = [each for each in self.arrived if b"GET /twin " in each]
        arena.expect(len(twins) == 1, f"the allowed host was asked {len(twins)} times")
        self.arrived.remove(twins[0])

    def expect_nothing_arrived(self, arena: Arena) -> None:
        """The far end's word."""
        arena.expect(not self.arrived, f"the server was reached: {self.arrived}")


@contextlib.asynccontextmanager
async def way_out(
    arena: Arena,
    *,
    private: bool = True,
    address: str = "127.0.0.1",
    further: tuple[str, ...] = (),
    asks: bool = False,
    **settings: Any,
) -> AsyncIterator[WayOut]:
    """A sandbox with a way out to a server of this case; the gateway ends with it.

    With `asks` each connection there waits for a person.
    """
    arrived: list[bytes] = []
    peers: set[str] = set()
    came = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.add(writer.get_extra_info("peername")[0])
        try:
            arrived.append(await reader.readuntil(b"\r\n\r\n"))
            came.set()
            writer.write(_ANSWER)
            await writer.drain()
        except asyncio.IncompleteReadError as error:
            if error.partial:
                arrived.append(error.partial)
        except ConnectionError:
            return
        finally:
            writer.close()
            # One that was cut while it was written to is nobody's news.
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    gateway = Node.current().gateway
    await gateway.rest()
    gateway.answers = {ALLOWED: [address], OTHER: ["127.0.0.1"]}
    place = f"{ALLOWED}:{port}"
    egress = Egress([place, *further], [ALLOWED] if private else [])
    if asks:
        rule = EgressRule(name="a person says", host=place, effect="ask", private=private)
        egress = Egress(further, rules=[rule])
    try:
        async with arena.sandbox(egress=egress, **{"ledger": "off", **settings}) as sandbox:
            yield WayOut(sandbox, port, arrived, peers, came)
    except Unsupported as error:
        raise NotApplicable(str(error)) from None
    finally:
        gateway.answers = None
        await gateway.rest()
        server.close()
        await server.wait_closed()


async def another_gateway(pid: int | None) -> None:
    """Wait until another process than this one, which was killed, serves."""
    gateway = Node.current().gateway
    try:
        async with asyncio.timeout(_GATEWAY_S):
            await gateway.wait_other(pid)
    except TimeoutError:
        raise NotHeld(f"there is no other gateway after {_GATEWAY_S:g} s") from None


def require_denied(found: list[str], *wanted: str) -> None:
    """Require that these, and nothing else, were recorded as denied."""
    missing = [each for each in wanted if each not in found]
    if missing:
        raise NotHeld(f"not recorded as denied: {missing}; recorded: {found}")
