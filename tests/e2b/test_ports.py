"""Servers inside a sandbox, reached by their host name or by headers."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Protocol
from urllib.parse import urlsplit

import httpx
import pytest
from e2b import Sandbox
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

ECHO = r"""
import base64, hashlib, http.server, sys
class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.headers.get("Upgrade") == "websocket":
            return self.websocket()
        body = (self.path + "|" + self.headers["Host"] + "|" + str(dict(self.headers))).encode()
        self.answer(body)
    def do_POST(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size); self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(body[::-1])
    def answer(self, body):
        self.send_response(200); self.send_header("X-Inside", "yes")
        if "Cookies" in self.headers:
            self.send_header("Set-Cookie", self.headers["Cookies"])
        self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def websocket(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_response(101); self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade"); self.send_header("Sec-WebSocket-Accept", accept)
        self.end_headers()
        while True:
            first, second = self.rfile.read(2)
            size = second & 127
            if size == 126: size = int.from_bytes(self.rfile.read(2), "big")
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(size)))
            if first & 15 == 8: return
            if data == b"host":
                data = self.headers["Host"].encode(); size = len(data)
            if data.startswith(b"big "):
                size = int(data[4:])
                self.wfile.write(bytes([0x82, 127]) + size.to_bytes(8, "big") + bytes(size))
                continue
            wide = size.to_bytes(2, "big") if size > 125 else b""
            self.wfile.write(bytes([first, 126 if wide else size]) + wide + data)
    def log_message(self, *_): pass
print("ready", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Echo).serve_forever()
"""


class Pointed(Protocol):
    url: str


def serve_inside(sandbox: Sandbox, port: int = 8000) -> None:
    sandbox.files.write("echo.py", ECHO)
    sandbox.commands.run(f"python3 echo.py {port}", background=True)
    script = f"until (: < /dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.02; done"
    sandbox.commands.run(script, timeout=20)


@pytest.fixture(scope="module")
def inside(pointed: None) -> Iterator[Sandbox]:
    sandbox = Sandbox.create(timeout=300)
    serve_inside(sandbox)
    yield sandbox
    sandbox.kill()


def ask(server: Pointed, sandbox: Sandbox, port: int = 8000, **headers: str) -> httpx.Response:
    headers = {"Host": sandbox.get_host(port), **headers}
    return httpx.get(f"{server.url}/some/path?q=1", headers=headers, timeout=20)


def test_a_server_inside_answers_under_its_host_name(server: Pointed, inside: Sandbox) -> None:
    answer = ask(server, inside)
    path, host, headers = answer.text.split("|")
    assert (path, host) == ("/some/path?q=1", inside.get_host(8000))
    assert answer.headers["x-inside"] == "yes"
    assert "x-access-token" not in headers.lower()


def test_it_is_reached_by_headers_too_and_learns_no_token(server: Pointed, inside: Sandbox) -> None:
    named = {"E2b-Sandbox-Id": inside.sandbox_id, "E2b-Sandbox-Port": "8000", "X-Access-Token": "t"}
    answer = httpx.get(f"{server.url}/x", headers=named, timeout=20)
    assert answer.text.startswith("/x|")
    assert "access-token" not in answer.text.lower()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_goes_in_whole(server: Pointed, inside: Sandbox, chunked: bool) -> None:
    data = bytes(range(256)) * 4000
    content = (data[at : at + 7000] for at in range(0, len(data), 7000)) if chunked else data
    answer = httpx.post(
        f"{server.url}/", content=content, headers={"Host": inside.get_host(8000)}, timeout=30
    )
    assert answer.content == data[::-1]


def test_headers_are_written_as_servers_know_them(server: Pointed, inside: Sandbox) -> None:
    host = f"8000-{inside.sandbox_id}.localhost"
    told = httpx.get(server.url, headers={"host": host, "x-own-header": "1"}).text
    assert "'Host'" in told
    assert "'X-Own-Header'" in told


def test_a_closed_port_and_a_missing_sandbox_are_told_apart(
    server: Pointed, inside: Sandbox
) -> None:
    closed = ask(server, inside, 8001)
    assert (closed.status_code, closed.json()["message"]) == (
        502,
        "The sandbox is running but port is not open",
    )
    gone = httpx.get(f"{server.url}/", headers={"Host": f"8000-i{'a' * 26}.localhost"})
    assert (gone.status_code, gone.json()["message"]) == (502, "The sandbox was not found")


def test_a_websocket_carries_messages_both_ways(server: Pointed, inside: Sandbox) -> None:
    address = f"ws://{inside.get_host(8000)}/socket"
    with connect(address, sock=connected(server), open_timeout=20) as messages:
        messages.send("héllo")
        assert messages.recv(timeout=10) == "héllo"
        messages.send(b"\x00\xff" * 5000)
        assert messages.recv(timeout=10) == b"\x00\xff" * 5000
        messages.send("host")
        assert messages.recv(timeout=10) == inside.get_host(8000)


def test_a_picture_of_a_page_is_one_message_and_there_is_a_largest(
    server: Pointed, inside: Sandbox
) -> None:
    address = f"ws://{inside.get_host(8000)}/socket"
    options = {"sock": connected(server), "open_timeout": 20, "max_size": None}
    with connect(address, **options) as messages:
        for size in (2**20 + 1, 12 * 2**20):
            messages.send(f"big {size}")
            assert len(messages.recv(timeout=30)) == size
        messages.send(f"big {32 * 2**20 + 1}")
        with pytest.raises(WebSocketException):
            messages.recv(timeout=30)


def test_a_websocket_to_a_closed_port_is_refused(server: Pointed, inside: Sandbox) -> None:
    address = f"ws://{inside.get_host(8001)}/socket"
    with pytest.raises(WebSocketException):
        connect(address, sock=connected(server), open_timeout=20)


def connected(server: Pointed) -> socket.socket:
    """A connection to the server itself: the host name need not be one that resolves."""
    place = urlsplit(server.url)
    return socket.create_connection((place.hostname or "", place.port or 0))


def test_private_traffic_needs_its_token_and_a_masked_host_is_seen(server: Pointed) -> None:
    network = {"allow_public_traffic": False, "mask_request_host": "inner:${PORT}"}
    sandbox = Sandbox.create(network=network)
    try:
        serve_inside(sandbox)
        assert sandbox.traffic_access_token
        assert ask(server, sandbox).status_code == 403
        wrong = ask(server, sandbox, **{"e2b-traffic-access-token": "0" * 64})
        assert wrong.status_code == 403
        token = {"e2b-traffic-access-token": sandbox.traffic_access_token}
        answer = ask(server, sandbox, **token)
        assert answer.status_code == 200
        assert answer.text.split("|")[1] == "inner:8000"
        assert sandbox.traffic_access_token not in answer.text
    finally:
        sandbox.kill()


def test_a_paused_sandbox_answers_as_if_it_were_gone(server: Pointed) -> None:
    sandbox = Sandbox.create()
    try:
        serve_inside(sandbox)
        sandbox.pause()
        begun = time.monotonic()
        assert ask(server, sandbox).json()["message"] == "The sandbox was not found"
        assert time.monotonic() - begun < 5
        sandbox.connect()
        assert ask(server, sandbox).status_code == 200
    finally:
        sandbox.kill()


def test_a_key_of_the_server_is_not_passed_in_and_other_keys_are(
    server: Pointed, key: str, inside: Sandbox
) -> None:
    answer = ask(server, inside, **{"X-API-Key": key, "Authorization": f"Bearer {key}"})
    assert key not in answer.text
    assert "own-key" in ask(server, inside, **{"X-API-Key": "own-key"}).text


def test_a_cookie_for_a_whole_domain_is_not_set(server: Pointed, inside: Sandbox) -> None:
    wide = ask(server, inside, cookies="a=1; Domain=localhost")
    assert "set-cookie" not in wide.headers
    assert ask(server, inside, cookies="a=1; Path=/").headers["set-cookie"] == "a=1; Path=/"
