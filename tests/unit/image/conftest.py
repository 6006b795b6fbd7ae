"""A registry that does what a test says, and remembers what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass
class Answer:
    """What it answers to one request; `break_off` closes the connection in the middle."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    break_off: bool = False


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    path: str
    authorization: str | None
    body: bytes


class FakeRegistry:
    """Answers by a function of the request; more than one may run on this machine."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answer: Callable[[Asked], Answer] = lambda asked: Answer(404)
        registry = self

        class Desk(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                asked = Asked(self.path, self.headers["Authorization"], self.rfile.read(length))
                registry.asked.append(asked)
                answer = registry.answer(asked)
                self.send_response(answer.status)
                for name, value in {
                    "Content-Length": str(len(answer.body)),
                    **answer.headers,
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                end = len(answer.body) // 2 if answer.break_off else None
                self.wfile.write(answer.body[:end])
                self.close_connection = answer.break_off or self.close_connection

            do_POST = do_GET

            def log_message(self, *words: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Desk)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def paths(self, part: str) -> list[Asked]:
        return [asked for asked in self.asked if part in asked.path]

    def close(self) -> None:
        """Stop listening; nothing happens the second time."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    registry = FakeRegistry()
    yield registry
    registry.close()


@pytest.fixture
def other() -> Iterator[FakeRegistry]:
    """Another host, as far as a client can tell: it has another port."""
    registry = FakeRegistry()
    yield registry
    registry.close()


@pytest.fixture
def answers() -> type[Answer]:
    return Answer
