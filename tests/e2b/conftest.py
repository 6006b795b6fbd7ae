"""What the tests of E2B's protocol share: a real server, and E2B's own clients pointed at it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy
import pytest
from e2b import Sandbox

ROOT = Path(__file__).parents[2]
KERNEL = ROOT / ".venv" / "state" / "kernel"

SETTINGS = """
unlimited_disk = true
hosts = ["localhost", "127.0.0.1", "*.localhost"]
slow_client_s = "5s"
[tenants.tight]
sandboxes = 3
"""


# What draws figures here draws them inside too, if both are of one version of Python.
HAS_PLOTS = KERNEL.is_dir() and (
    subprocess.run(
        ["/usr/bin/python3", "-c", "import sys; print(sys.version_info[:2])"],
        capture_output=True,
        text=True,
    ).stdout.strip()
    == str(sys.version_info[:2])
)


def _add_plots(kernel: Path) -> None:
    """Put matplotlib, and what it needs, where sandboxes see their kernel."""
    site = Path(numpy.__file__).parents[1]
    for name in (
        *("numpy", "numpy.libs", "matplotlib", "mpl_toolkits", "PIL", "pillow.libs", "contourpy"),
        *("cycler", "dateutil", "six.py", "kiwisolver", "packaging", "pyparsing", "fontTools"),
    ):
        target = kernel / name
        if (site / name).is_dir() and not target.exists():
            shutil.copytree(site / name, target, copy_function=os.link)
        elif (site / name).is_file() and not target.exists():
            os.link(site / name, target)


class Server:
    """A `cloister serve` of its own, and tokens for it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = directory / "state"
        self.state.mkdir(mode=0o700)
        self.config = directory / "server.toml"
        self.config.write_text(SETTINGS)
        self.environment = {**os.environ, "CLOISTER_STATE": str(self.state)}
        if KERNEL.is_dir():
            shutil.copytree(KERNEL, self.state / "kernel", copy_function=os.link)
            if HAS_PLOTS:
                _add_plots(self.state / "kernel")
        self.url = ""
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        self.log = (self.directory / "log").open("a")
        place = ["--socket", str(self.directory / "socket"), "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cloister", "serve", "--config", str(self.config), *place],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline(), self.process.stdout.readline()]
        assert all(lines), self.said()
        self.url = lines[1].split()[-1]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it; return how it ended."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()
        self.process = None
        return code

    def said(self) -> str:
        return (self.directory / "log").read_text()

    def key(self, tenant: str, *options: str) -> str:
        """A key of a tenant, in the form that E2B's clients accept."""
        command = [sys.executable, "-m", "cloister", "token", "create", "--tenant", tenant, "--e2b"]
        done = subprocess.run(
            [*command, "--config", str(self.config), *options],
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for all tests; its end must be a clean one."""
    # Not below /tmp: a host directory that is shown inside has its parents made there.
    directory = Path(tempfile.mkdtemp(prefix="e2b-", dir=ROOT / ".venv"))
    one = Server(directory)
    try:
        one.start()
        try:
            yield one
        finally:
            code = one.stop()
        assert code == 0, one.said()
        assert "Traceback" not in one.said(), one.said()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def key(server: Server) -> str:
    return server.key("acme")


@pytest.fixture(scope="session")
def other_key(server: Server) -> str:
    """A key of somebody else."""
    return server.key("rival")


@pytest.fixture(scope="session", autouse=True)
def pointed(server: Server, key: str) -> Iterator[None]:
    """E2B's clients are pointed at the server as their users would point them."""
    patch = pytest.MonkeyPatch()
    patch.setenv("E2B_API_KEY", key)
    patch.setenv("E2B_API_URL", server.url)
    patch.setenv("E2B_SANDBOX_URL", server.url)
    yield
    patch.undo()


@pytest.fixture(scope="session")
def shared(pointed: None) -> Iterator[Sandbox]:
    """A sandbox for tests that leave it as it was."""
    sandbox = Sandbox.create(envs={"GIVEN": "at creation"}, timeout=600)
    yield sandbox
    sandbox.kill()


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    """A sandbox of one test's own."""
    one = Sandbox.create(timeout=120)
    yield one
    one.kill()


@pytest.fixture
def wire(server: Server, shared: Sandbox) -> Iterator[httpx.Client]:
    """What speaks to the shared sandbox's envd without a client library, with its token."""
    with httpx.Client(base_url=server.url, headers=envd_headers(shared), timeout=30) as client:
        yield client


def envd_headers(sandbox: Sandbox) -> dict[str, str]:
    """The headers that every request of the SDKs to envd has."""
    token = sandbox._envd_access_token
    assert token
    return {
        "E2b-Sandbox-Id": sandbox.sandbox_id,
        "E2b-Sandbox-Port": "49983",
        "X-Access-Token": token,
    }
