"""Starts the real command line, piped or on a terminal of its own, and asks what came of it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

DEADLINE_S = 30.0
COMMAND = [sys.executable, "-m", "cloister"]

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def cli() -> Run:
    """Run the command line with piped streams and return how it ended."""

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        options.setdefault("input", b"")
        return subprocess.run(
            [*COMMAND, *arguments], capture_output=True, timeout=DEADLINE_S, **options
        )

    return run


@pytest.fixture(scope="session")
def weaker() -> list[str]:
    """Options that go without the limits this host cannot hold for this user; none for most."""
    options: list[str] = []
    for _ in range(3):
        tried = subprocess.run(
            [*COMMAND, "run", "--json", *options, "--", "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DEADLINE_S,
        )
        if tried.returncode == 0:
            return options
        error = json.loads(tried.stderr)["error"]
        assert error["kind"] == "CannotEnforce", error
        options += [f"--{error['limit']}", "unlimited"]
    raise AssertionError(f"no sandbox starts here, not even with {options}")


@pytest.fixture
def sandboxed(cli: Run, weaker: list[str]) -> Run:
    """Run `cloister run` with the limits this host can hold."""

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        return cli("run", *weaker, *arguments, **options)

    return run


class Terminal:
    """The command line on a terminal of its own, read and typed at from outside."""

    def __init__(self, arguments: list[str], rows: int = 24, columns: int = 80) -> None:
        self._master, slave = pty.openpty()
        self.resize(rows, columns, tell=False)
        self.settings_before = termios.tcgetattr(slave)
        self._slave = slave
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.pending = b""
        self.everything = b""

    @property
    def settings(self) -> list[Any]:
        """The terminal's settings now."""
        return termios.tcgetattr(self._slave)

    def resize(self, rows: int, columns: int, *, tell: bool = True) -> None:
        """Change the size; the kernel tells the foreground process."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def expect(self, pattern: str) -> re.Match[bytes]:
        """Wait until the pattern appears in what has not been matched yet."""
        deadline = time.monotonic() + DEADLINE_S
        expression = re.compile(pattern.encode(), re.DOTALL)
        while (found := expression.search(self.pending)) is None:
            left = deadline - time.monotonic()
            assert left > 0 and self._read(left), f"no {pattern!r} in {self.pending!r}"
        self.pending = self.pending[found.end() :]
        return found

    def _read(self, seconds: float) -> bytes:
        if not select.select([self._master], [], [], seconds)[0]:
            return b""
        try:
            data = os.read(self._master, 65_536)
        except OSError as error:
            assert error.errno == errno.EIO
            return b""
        self.pending += data
        self.everything += data
        return data

    def wait(self) -> int:
        """Wait for the end, reading on so that nothing is held up; return the exit code."""
        deadline = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"still running after {self.pending!r}"
            self._read(0.05)
        while self._read(0.0):
            continue
        return self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._slave)
        os.close(self._master)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Start command lines on terminals; all are ended with the test."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: str, rows: int = 24, columns: int = 80) -> Terminal:
            started = Terminal(list(arguments), rows, columns)
            stack.callback(started.close)
            return started

        yield start
