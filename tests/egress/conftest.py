"""Servers on the host's loopback that remember who asked them for what, and names for them."""

from __future__ import annotations

import datetime
import http.server
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cloister import Sandbox
from cloister.node import Node
from cloister.policy import Egress
from cloister.runtime.gvisor.program import candidates
from cloister.runtime.namespace.ids import find_sub_ids

from ..contract.machine_root import PLACE, has_machines, make_disks

# Names of nobody (RFC 2606), and the address that the gateway of the tests finds for them.
NAMES = ("web.test", "other.test", "git.test", "a.wild.test")
LOOPBACK = "127.0.0.1"


# Asked on each wall; the others are about the gateway, which is the same behind all of them.
ON_EVERY_WALL = {
    "test_a_fork_has_none_unless_it_is_granted",
    "test_a_killed_gateway_resets_what_was_open_and_another_serves",
    "test_a_server_that_speaks_first_is_heard",
    "test_curl_reaches_an_allowed_host_and_no_other",
    "test_datagrams_to_anywhere_are_recorded_and_those_inside_are_not",
    "test_programs_trust_what_reads_their_requests",
    "test_python_sends_and_fetches_much",
    "test_the_proxies_inside_serve_those_who_ask",
    "test_the_value_is_found_nowhere_but_at_its_host",
}
HAS_GVISOR = bool(candidates()) and (os.geteuid() == 0 or find_sub_ids() is not None)
WALLS = ("namespace", *(("gvisor",) if HAS_GVISOR else ()))
# All of them behind another wall: `EGRESS_WALL=microvm pytest tests/egress`.
USUAL_WALL = os.environ.get("EGRESS_WALL", "namespace")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function.__name__ in ON_EVERY_WALL and "EGRESS_WALL" not in os.environ:
        metafunc.parametrize("wall", WALLS, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    absent = [item for item in items if item.path.stem == "test_machines" and not has_machines()]
    absent = [item for item in absent if item.path.parent == Path(__file__).parent]
    if absent:
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if item not in absent]


@pytest.fixture(autouse=True)
def wall(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The wall of the sandboxes of a test, where it names none itself."""
    name: str = getattr(request, "param", USUAL_WALL)
    monkeypatch.setenv("CLOISTER_RUNTIMES", f"internal={name}")
    if name == "microvm":
        # The disk of the host's programs is made once, not for each test's state.
        make_disks()
        monkeypatch.setenv("CLOISTER_MICROVM", str(PLACE))
    return name


@dataclass
class FarEnd:
    """A server: its port, all it was asked for, as (Host, path), and with which authorization."""

    port: int
    asked: list[tuple[str | None, str]] = field(default_factory=list)
    told: list[str | None] = field(default_factory=list)
    connections: int = 0

    @property
    def paths(self) -> list[str]:
        return [path for _, path in self.asked]


class _Answering(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 20

    def __init__(self, *arguments: Any, end: FarEnd, directory: str) -> None:
        self.end = end
        super().__init__(*arguments, directory=directory)

    def setup(self) -> None:
        self.end.connections += 1
        super().setup()

    def do_GET(self) -> None:
        self.end.asked.append((self.headers["Host"], self.path))
        self.end.told.append(self.headers["Authorization"])
        super().do_GET()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.end.asked.append((self.headers["Host"], self.path))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        return


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 1000

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A connection that was cut is what many of these tests are about.
        return


def _serve(directory: Path, context: ssl.SSLContext | None) -> Iterator[FarEnd]:
    end = FarEnd(0)
    server = _Server((LOOPBACK, 0), partial(_Answering, end=end, directory=str(directory)))
    end.port = server.server_port
    if context is not None:
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield end
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """What the servers have: /hello says so, /large is 8 MiB."""
    place = tmp_path / "documents"
    place.mkdir()
    (place / "hello").write_text("hello from outside\n")
    (place / "large").write_bytes(bytes(range(256)) * 32_768)
    return place


@pytest.fixture
def web(documents: Path) -> Iterator[FarEnd]:
    """An HTTP server."""
    yield from _serve(documents, None)


@pytest.fixture
def other_web(documents: Path) -> Iterator[FarEnd]:
    """Another one, which nobody may reach."""
    yield from _serve(documents, None)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for all names of the tests, with its key, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in NAMES]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("certificate") / "both.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path


@pytest.fixture
def tls(documents: Path, certificate: Path) -> Iterator[FarEnd]:
    """An HTTPS server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    yield from _serve(documents, context)


@dataclass
class Echo:
    """A server that speaks first, and then says again what it hears."""

    port: int
    heard: list[bytes] = field(default_factory=list)


@pytest.fixture
def echo() -> Iterator[Echo]:
    listener = socket.create_server((LOOPBACK, 0))
    end = Echo(listener.getsockname()[1])

    def serve(sock: socket.socket) -> None:
        with sock:
            try:
                sock.sendall(b"220 welcome\n")
                while data := sock.recv(65_536):
                    end.heard.append(data)
                    sock.sendall(data)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(sock,), daemon=True).start()

    thread = threading.Thread(target=accept)
    thread.start()
    yield end
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


Make = Callable[..., Sandbox]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has a way out is recorded: not among what this machine's people keep."""
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path / "state"))


@pytest.fixture
async def sandbox_to() -> AsyncIterator[Make]:
    """Make a sandbox that may reach these, whose names are on this machine."""
    Node.current().gateway.answers = {name: [LOOPBACK] for name in NAMES}

    def make(*allow: str, private: bool = True, **more: Any) -> Sandbox:
        names = [each.partition(":")[0] for each in allow if not each.startswith("*")]
        own = list(dict.fromkeys(names)) if private else []
        return Sandbox(egress=Egress(allow, own), **more)

    yield make


@pytest.fixture
def inside() -> Callable[[str], list[str]]:
    """Return the argv of a Python program inside."""
    return lambda text: ["/usr/bin/python3", "-c", text]
