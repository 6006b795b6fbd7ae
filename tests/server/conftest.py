"""What the tests of the server share: a real one on a unix socket and on TCP, and its clients."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cloister.server.records import Records
from cloister.server.tokens import Wish, create_token

from ..contract.machine_root import PLACE, make_disks
from ..differences import skip_if_different

# All of them behind another wall: `SERVER_WALL=microvm pytest tests/server`, or `gvisor`.
WALL = os.environ.get("SERVER_WALL", "namespace")
# How long a server may take for what it is asked; a machine may be emulated.
ANSWER_S = 600.0 if WALL == "microvm" else 60.0
# After what is to outlive the killing of a server, which to a machine's disk is a power cut.
SYNCED = (
    " && find /workspace -type f -exec sync {} + && sync /workspace" if WALL == "microvm" else ""
)


@pytest.fixture(autouse=True)
def wall(request: pytest.FixtureRequest) -> None:
    """Skip what is said otherwise of the wall that the servers' sandboxes are behind."""
    if WALL != "namespace":
        skip_if_different(request.node, WALL)


class Server:
    """A `cloister serve` of its own, with its own state."""

    def __init__(self, directory: Path, settings: str) -> None:
        self.directory = directory
        self.config = directory / "server.toml"
        self.config.write_text(settings)
        self.socket = directory / "server.sock"
        key = directory / "owner.key"
        key.write_text("5a" * 32)
        key.chmod(0o600)
        self.environment = {
            **os.environ,
            "CLOISTER_STATE": str(directory / "state"),
            "CLOISTER_MEMORY_KEY": str(key),
        }
        if WALL != "namespace":
            self.environment["CLOISTER_RUNTIMES"] = f"internal={WALL}"
        if WALL == "microvm":
            # The disk of the host's programs is made once, not for each server's state.
            make_disks()
            self.environment["CLOISTER_MICROVM"] = str(PLACE)
        self.process: subprocess.Popen[str] | None = None
        self.url = ""
        self._clients: list[httpx.Client] = []

    def start(self) -> None:
        """Start it and wait until it listens."""
        self.log = (self.directory / "log").open("a")
        self.process = subprocess.Popen(
            [*self._cloister("serve"), "--socket", str(self.socket), "--listen", "127.0.0.1:0"],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline(), self.process.stdout.readline()]
        if not all(lines):
            self.stop()
            raise AssertionError(self.said())
        self.url = lines[1].split()[-1]

    def _cloister(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "cloister", *words, "--config", str(self.config)]

    def said(self) -> str:
        return (self.directory / "log").read_text()

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        for client in self._clients:
            client.close()
        self._clients.clear()
        self.process.send_signal(number)
        code = self.process.wait(ANSWER_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()
        self.process = None
        return code

    def run(self, *words: str) -> str:
        """Run a command of the command line against the server's records."""
        done = subprocess.run(
            self._cloister(*words), env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def token(self, tenant: str, **wishes: Any) -> str:
        records = Records.open(f"sqlite:///{self.directory}/state/server.db")
        try:
            return create_token(records, Wish(tenant, **wishes))[0]
        finally:
            records.close()

    def owner(self) -> httpx.Client:
        """A client by the unix socket."""
        transport = httpx.HTTPTransport(uds=str(self.socket))
        return self._kept(
            httpx.Client(transport=transport, base_url="http://localhost", timeout=ANSWER_S)
        )

    def client(self, token: str | None, **headers: str) -> httpx.Client:
        """A client by TCP."""
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        return self._kept(httpx.Client(base_url=self.url, headers=headers, timeout=ANSWER_S))

    def _kept(self, client: httpx.Client) -> httpx.Client:
        self._clients.append(client)
        return client


StartServer = Callable[..., Server]

SETTINGS = """
unlimited_disk = true
slow_client_s = "1s"
[quota]
sandboxes = 20
requests_per_s = 100000
[tenants.hasty]
requests_per_s = 1
[tenants.small]
sandboxes = 1
"""


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server that tests share; each makes tenants or sandboxes of its own."""
    with short_directory() as directory:
        one = Server(directory, SETTINGS)
        one.start()
        try:
            yield one
        finally:
            code = one.stop()
        assert code == 0, one.said()


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """Starts servers of one test's own."""
    with short_directory() as directory:
        started: list[Server] = []

        def start(settings: str = SETTINGS) -> Server:
            place = directory / str(len(started))
            place.mkdir()
            one = Server(place, settings)
            started.append(one)
            one.start()
            return one

        yield start
        for one in started:
            if one.process is not None:
                one.stop()


class short_directory:
    """A short path: that of a unix socket has 107 bytes."""

    def __enter__(self) -> Path:
        self._path = Path(tempfile.mkdtemp(prefix="clo-srv-"))
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


@pytest.fixture(scope="session")
def owner(server: Server) -> httpx.Client:
    return server.owner()


@pytest.fixture(scope="session")
def acme(server: Server) -> httpx.Client:
    return server.client(server.token("acme"))


@pytest.fixture(scope="session")
def globex(server: Server) -> httpx.Client:
    return server.client(server.token("globex"))


@pytest.fixture
def sandbox(acme: httpx.Client) -> Iterator[str]:
    """The id of a running sandbox of acme's."""
    id = created(acme)
    yield id
    acme.delete(f"/v1/sandboxes/{id}")


def created(client: httpx.Client, **spec: Any) -> str:
    """Start a sandbox and return its id."""
    answer = client.post("/v1/sandboxes", json=spec)
    assert answer.status_code == 201, answer.text
    return str(json.loads(answer.text)["id"])
