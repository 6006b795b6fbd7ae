"""Doors of a sandbox with rules on requests, and TLS servers behind them that remember."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cloister.egress import control
from cloister.egress.bounds import Bounds
from cloister.egress.depth.authority import Authority, Leaves, make_authority
from cloister.egress.intake import Intake
from cloister.egress.pipes import Pipes
from cloister.egress.reports import Reports
from cloister.egress.secrets.bound import Secrets
from cloister.egress.upstream import Upstream
from cloister.egress.ward import Depth, Ward
from cloister.policy import Egress, Policy

NAMES = ("web.test", "other.test")
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Issued:
    """A certificate of a server with its key in one file, and what signs it."""

    path: Path
    bundle: str


def issue_certificate(place: Path, names: tuple[str, ...], days: int = 1) -> Issued:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=10))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in names]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = place / f"{'-'.join(names)}{days}.pem"
    path.write_bytes(made.public_bytes(pem) + private)
    return Issued(path, made.public_bytes(pem).decode())


@pytest.fixture(scope="session")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Issued:
    return issue_certificate(tmp_path_factory.mktemp("issued"), NAMES)


@dataclass
class FarEnd:
    """A server: its port, and every request that reached it: (method, path, headers, body)."""

    port: int
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    raw: bytearray = field(default_factory=bytearray)
    connections: int = 0
    answer: Callable[[str, dict[str, str], bytes], tuple[bytes, bytes]] | None = None

    @property
    def paths(self) -> list[str]:
        return [path for _, path, _, _ in self.asked]


Speak = Callable[[FarEnd, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Serve = Callable[..., AbstractAsyncContextManager[FarEnd]]


@pytest.fixture
def served(issued: Issued) -> Serve:
    """Run a server; the default speaks HTTP/1.1 and answers "ok" to everything."""

    @contextlib.asynccontextmanager
    async def serve(
        speak: Speak = speak_h1, *, tls: bool = True, alpn: str = "http/1.1", by: Path | None = None
    ) -> AsyncIterator[FarEnd]:
        context = None
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(by or issued.path)
            context.set_alpn_protocols([alpn])

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            end.connections += 1
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                await speak(end, reader, writer)
            writer.close()

        server = await asyncio.start_server(talk, LOOPBACK, 0, ssl=context)
        end = FarEnd(server.sockets[0].getsockname()[1])
        try:
            yield end
        finally:
            server.close()

    return serve


async def read_request(
    end: FarEnd, reader: asyncio.StreamReader
) -> tuple[str, str, dict[str, str], bytes] | None:
    """Read one request as a plain server does, which takes it at its word."""
    head = await reader.readuntil(b"\r\n\r\n")
    end.raw += head
    lines = head.decode("latin-1").split("\r\n")
    method, path, _ = lines[0].split(" ")
    headers = {
        line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines[1:] if line
    }
    body = b""
    if "chunked" in headers.get("transfer-encoding", ""):
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readline()
        while (line := await reader.readline()) not in (b"\r\n", b""):
            headers["trailer " + line.decode().partition(":")[0].lower()] = (
                line.decode().partition(":")[2].strip()
            )
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    request = method, path, headers, body
    end.asked.append(request)
    return request


async def speak_h1(end: FarEnd, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        try:
            request = await read_request(end, reader)
        except asyncio.IncompleteReadError:
            return
        if request is None:
            return
        _, path, headers, body = request
        extra, answer = (b"", b"ok") if end.answer is None else end.answer(path, headers, body)
        writer.write(b"HTTP/1.1 200 OK\r\n" + extra + b"Content-Length: %d\r\n\r\n" % len(answer))
        if request[0] != "HEAD":
            writer.write(answer)
        await writer.drain()


async def speak_h2(end: FarEnd, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server of HTTP/2 that says back what it was sent, with a trailer."""
    http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    http.initiate_connection()
    writer.write(http.data_to_send())
    streams: dict[int, tuple[dict[str, str], bytearray]] = {}
    waiting: dict[int, bytes] = {}

    def push(number: int) -> None:
        body = waiting[number]
        while body and (room := http.local_flow_control_window(number)) > 0:
            size = min(room, http.max_outbound_frame_size, len(body))
            http.send_data(number, body[:size])
            body = body[size:]
        waiting[number] = body
        if not body:
            del waiting[number]
            http.send_headers(number, [("x-trailer", "behind")], end_stream=True)

    while data := await reader.read(65_536):
        for event in http.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                headers = {k.decode(): v.decode() for k, v in event.headers}
                streams[event.stream_id] = headers, bytearray()
            elif isinstance(event, h2.events.DataReceived):
                streams[event.stream_id][1].extend(event.data)
                http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.TrailersReceived):
                for key, value in event.headers:
                    streams[event.stream_id][0]["trailer " + key.decode()] = value.decode()
            elif isinstance(event, h2.events.StreamEnded):
                headers, body = streams.pop(event.stream_id)
                end.asked.append((headers[":method"], headers[":path"], headers, bytes(body)))
                http.send_headers(event.stream_id, [(":status", "200"), ("x-of", "h2")])
                waiting[event.stream_id] = bytes(body) or b"ok"
                push(event.stream_id)
            elif isinstance(event, h2.events.WindowUpdated):
                for number in [n for n in waiting if event.stream_id in (0, n)]:
                    push(number)
        writer.write(http.data_to_send())
        await writer.drain()


@dataclass
class Doors:
    """The proxy of a sandbox, and what its owner was told."""

    http: int
    owner: socket.socket
    ward: Ward
    trusted: ssl.SSLContext
    told: list[dict[str, Any]] = field(default_factory=list)

    async def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        for _ in range(4):
            await asyncio.sleep(0)
        with contextlib.suppress(BlockingIOError):
            while (received := control.receive(self.owner)) is not None:
                self.told += received[0].get("events", [])
        return [each for each in self.told if kind in (None, each["kind"])]

    async def requests(self, *, allowed: bool) -> list[tuple[str, str, str]]:
        return [
            (each["method"], each["path"], each["rule"])
            for each in await self.events("request")
            if each["allowed"] is allowed
        ]

    async def connect(
        self, name: str, port: int, *, tls: bool = True, alpn: tuple[str, ...] = ()
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect as a program inside does, through the proxy."""
        reader, writer = await asyncio.open_connection(LOOPBACK, self.http)
        writer.write(f"CONNECT {name}:{port} HTTP/1.1\r\nHost: {name}:{port}\r\n\r\n".encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in answer, answer + await reader.read()
        if tls:
            context = self.trusted
            context.set_alpn_protocols(list(alpn))
            await writer.start_tls(context, server_hostname=name)
        return reader, writer

    async def talk(self, name: str, port: int, *parts: bytes, tls: bool = True) -> bytes:
        """Send parts, each after something came for the last; return all until the end."""
        reader, writer = await self.connect(name, port, tls=tls)
        seen = b""
        try:
            for at, part in enumerate(parts):
                writer.write(part)
                await writer.drain()
                if at + 1 < len(parts):
                    seen += await asyncio.wait_for(reader.read(65_536), 5)
            async with asyncio.timeout(5):
                while data := await reader.read(65_536):
                    seen += data
        except ConnectionError:
            seen += b"<reset>"
        finally:
            writer.close()
        return seen


Open = Callable[..., AbstractAsyncContextManager[Doors]]


@pytest.fixture
def opened(issued: Issued) -> Open:
    @contextlib.asynccontextmanager
    async def open_doors(
        rules: list[dict[str, Any]],
        allow: tuple[str, ...] = (),
        secrets: Mapping[str, Any] | None = None,
        values: Mapping[str, Mapping[str, str]] | None = None,
        bounds: Bounds | None = None,
    ) -> AsyncIterator[Doors]:
        bounds = bounds or Bounds()
        hosts = {rule["host"].partition(":")[0] for rule in rules} | {
            each.partition(":")[0] for each in allow
        }
        egress = Egress(allow, sorted(hosts), rules)
        policy = Policy(egress=egress, secrets=secrets or {})
        ours, theirs = control.pair()
        theirs.setblocking(False)
        listeners = [socket.create_server((LOOPBACK, 0)) for _ in range(4)]
        datagrams = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
        for each in datagrams:
            each.bind((LOOPBACK, 0))
        tcp, names_tcp, http, socks = listeners
        names, refused = datagrams
        upstream = Upstream(bounds, {name: [LOOPBACK] for name in NAMES})
        pipes = Pipes()
        authority: Authority = make_authority(sorted(hosts), 3600)
        ward = Ward(
            "box",
            policy,
            {},
            Reports(theirs, asyncio.get_running_loop()),
            upstream,
            pipes,
            bounds,
            depth=Depth(Leaves(authority), issued.bundle),
            secrets=Secrets.of(values or {}, policy.secrets),
        )
        order = (tcp, names, names_tcp, http, socks, refused)
        intake = Intake(ward, [os.dup(each.fileno()) for each in order])
        intake.begin()
        trusted = ssl.create_default_context(cadata=authority.certificate)
        try:
            yield Doors(http.getsockname()[1], ours, ward, trusted)
        finally:
            intake.close()
            for _ in range(20):
                await asyncio.sleep(0)
            upstream.close()
            pipes.close()
            for each in (*listeners, *datagrams, ours, theirs):
                each.close()

    return open_doors


@pytest.fixture
def issue() -> Callable[..., Issued]:
    return issue_certificate


@pytest.fixture
def speaking_h2() -> Speak:
    return speak_h2


def all_of(port: int) -> list[dict[str, Any]]:
    """A rule that lets everything be sent to a host, and has it read."""
    return [
        {"name": "shut", "host": f"web.test:{port}", "paths": ["/shut/**"], "effect": "deny"},
        {"name": "all", "host": f"web.test:{port}", "record": True, "effect": "allow"},
    ]


class Client:
    """A client of HTTP/2 that waits for the whole of each answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        config = h2.config.H2Configuration(
            client_side=True, validate_outbound_headers=False, normalize_outbound_headers=False
        )
        self.http = h2.connection.H2Connection(config)
        self.http.initiate_connection()
        self.answers: dict[int, dict[str, str]] = {}
        self.bodies: dict[int, bytes] = {}
        self.over: set[int] = set()
        self.reset: set[int] = set()
        self.gone = False

    def ask(self, *headers: tuple[str, str], body: bytes | None = None) -> int:
        number = self.http.get_next_available_stream_id()
        self.http.send_headers(number, list(headers), end_stream=body is None)
        if body is not None:
            self.http.send_data(number, body, end_stream=True)
        self.bodies[number] = b""
        return number

    async def wait(self, *numbers: int) -> None:
        self.writer.write(self.http.data_to_send())
        async with asyncio.timeout(5):
            while not self.gone and not set(numbers) <= self.over | self.reset:
                try:
                    data = await self.reader.read(65_536)
                except ConnectionError:
                    data = b""
                self.gone = not data
                for event in self.http.receive_data(data) if data else ():
                    self._take(event)
                self.writer.write(self.http.data_to_send())

    def _take(self, event: Any) -> None:
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            found = {k.decode(): v.decode() for k, v in event.headers}
            self.answers.setdefault(event.stream_id, {}).update(found)
        elif isinstance(event, h2.events.DataReceived):
            self.bodies[event.stream_id] += event.data
            self.http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.over.add(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self.reset.add(event.stream_id)
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.gone = True


def get_of(port: int, path: str, method: str = "GET") -> list[tuple[str, str]]:
    return [
        (":method", method),
        (":scheme", "https"),
        (":authority", f"web.test:{port}"),
        (":path", path),
    ]


@pytest.fixture
def anything() -> Callable[[int], list[dict[str, Any]]]:
    return all_of


@pytest.fixture
def get() -> Callable[..., list[tuple[str, str]]]:
    return get_of


@pytest.fixture
def client_of() -> type[Client]:
    return Client
