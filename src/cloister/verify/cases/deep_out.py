"""Hosts whose requests are read, a TLS server that remembers and says back, and probes for both."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import secrets
import ssl
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloister.errors import Unsupported
from cloister.node import Node
from cloister.policy import Egress
from cloister.sandbox import Sandbox
from cloister.verify.arena import Arena
from cloister.verify.case import NotApplicable

BOUND, OPEN = "bound.test", "open.test"
_TRUST, SOURCE = "CLOISTER_CA_FILE", "CLOISTER_VERIFY_SECRET"

# Sends each of the texts by a connection of its own; returns what came back, or the error's name.
ASK_TLS = """
import ssl
def speak(host, port, words, asked=None, tls=True):
    context = ssl.create_default_context()
    context.check_hostname = asked is None
    try:
        with socket.create_connection((host, int(port)), 10) as sock:
            if tls:
                sock = context.wrap_socket(sock, server_hostname=asked or host)
            sock.sendall(words)
            answer = b""
            while part := sock.recv(65536):
                answer += part
            sock.close()
            return answer.decode("latin-1")
    except OSError as error:
        return type(error).__name__
def attempt(host, port, asked, tls, *texts):
    return [
        speak(host, port, bytes.fromhex(text), asked or None, tls == "tls") for text in texts
    ]
"""


@dataclass
class DeepOut:
    """A sandbox that may ask `BOUND` and `OPEN` for /open/**, and what arrived there."""

    sandbox: Sandbox
    port: int
    value: str
    arrived: list[bytes] = field(default_factory=list)

    def request(self, path: str, *headers: str, host: str = BOUND, method: str = "GET") -> bytes:
        """Return the words of one request that is the last of its connection."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{self.port}", *headers]
        return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1")

    async def say(
        self, arena: Arena, *texts: bytes, host: str = BOUND, asked: str = "", tls: bool = True
    ) -> list[str]:
        """Send texts, each by a connection of its own, and return what came back."""
        how = "tls" if tls else "plain"
        coded = [text.hex() for text in texts]
        attempt = await arena.attempt(
            self.sandbox, ASK_TLS, host, str(self.port), asked, how, *coded
        )
        found: list[str] = arena.expect_allowed(attempt)
        return found

    async def placeholder(self) -> str:
        """Return what the programs inside have instead of the secret."""
        return (await self.sandbox.run("printf %s $TOKEN")).stdout

    async def expect_reached(self, arena: Arena) -> None:
        """The twin: what is allowed arrives, and nothing else has."""
        arena.expect(not self.arrived, f"the server was reached: {self.arrived}")
        (answer,) = await self.say(arena, self.request("/open/twin"))
        arena.expect(" 200 " in answer[:13], f"the allowed request was answered {answer!r}")
        arena.expect(len(self.arrived) == 1, f"{len(self.arrived)} requests arrived")
        self.arrived.clear()


@contextlib.asynccontextmanager
async def deep_out(
    arena: Arena, *, trusted: bool = True, hosts: tuple[str, ...] = (BOUND,), **settings: Any
) -> AsyncIterator[DeepOut]:
    """A sandbox with rules on requests and a secret for one host; the gateway ends with it."""
    arrived: list[bytes] = []
    value = f"ghp_{secrets.token_hex(18)}"
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as undo:
        try:
            both, own = _issue(Path(place))
        except ImportError as error:
            raise NotApplicable(f"{error}; pip install 'cloister[depth]'") from None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(both)
        server = await asyncio.start_server(_served(arrived), "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        undo.enter_context(_variable(_TRUST, str(own) if trusted else ""))
        undo.enter_context(_variable(SOURCE, value))
        node = Node.current()
        await node.depth_gateway.rest()
        node.gateway.answers = {host: ["127.0.0.1"] for host in (BOUND, OPEN)}
        rules = [
            {
                "name": f"reading {host}",
                "host": f"{host}:{port}",
                "methods": ["GET", "POST"],
                "paths": ["/open/**"],
                "effect": "allow",
            }
            for host in (BOUND, OPEN)
        ]
        table = {
            "from": f"env:{SOURCE}",
            "hosts": [f"{host}:{port}" for host in hosts],
            "header": "Authorization",
        }
        try:
            async with arena.sandbox(
                **{
                    "egress": Egress((), (BOUND, OPEN), rules),
                    "secrets": {"TOKEN": table},
                    "ledger": "off",
                    **settings,
                }
            ) as sandbox:
                yield DeepOut(sandbox, port, value, arrived)
        except Unsupported as error:
            raise NotApplicable(str(error)) from None
        finally:
            node.gateway.answers = None
            await node.depth_gateway.rest()
            server.close()
            await server.wait_closed()


def _served(arrived: list[bytes]) -> Any:
    """A server that says back what it was told, and becomes a WebSocket when asked to."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                arrived.append(head)
                if b"upgrade: websocket" in head.lower():
                    writer.write(
                        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                        b"Connection: Upgrade\r\n\r\nswitched"
                    )
                    await writer.drain()
                    return
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(head) + head)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            return
        finally:
            writer.close()

    return serve


@contextlib.contextmanager
def _variable(name: str, value: str) -> Any:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _issue(place: Path) -> tuple[Path, Path]:
    """Write the certificate of the server with its key, and alone."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "verify")])
    names = [x509.DNSName(each) for each in (BOUND, OPEN)]
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    both, own = place / "both.pem", place / "own.pem"
    both.write_bytes(made.public_bytes(pem) + private)
    own.write_bytes(made.public_bytes(pem))
    return both, own
