"""WebSockets of a real server inside a sandbox, through the API and through a signed link."""

from __future__ import annotations

import time
from urllib.parse import quote

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from .conftest import Server, created
from .test_links import link_to

# RFC 6455 by hand: what is inside has nothing but the host's Python.
PROGRAM = r"""
import base64, hashlib, http.server, socketserver, struct
class Inside(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.headers.get("Upgrade") != "websocket":
            data = self.path.encode()
            self.send_response(200); self.send_header("Content-Length", str(len(data)))
            self.end_headers(); self.wfile.write(data)
            return
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_response(101)
        for pair in (("Upgrade", "websocket"), ("Connection", "Upgrade"),
                     ("Sec-WebSocket-Accept", accept), ("Set-Cookie", "session=mine")):
            self.send_header(*pair)
        self.end_headers()
        told = "|".join([self.path, *sorted(name.lower() for name in self.headers)])
        self.say(1, told.encode())
        while True:
            kind, data = self.hear()
            self.say(kind, data)
            if kind == 8:
                self.close_connection = True
                return
    def say(self, kind, data):
        short = len(data) < 126
        length = struct.pack("!B", len(data)) if short else struct.pack("!BH", 126, len(data))
        self.wfile.write(bytes([128 | kind]) + length + data)
    def hear(self):
        kind, length = self.rfile.read(2)
        length &= 127
        if length == 126: length, = struct.unpack("!H", self.rfile.read(2))
        mask, data = self.rfile.read(4), self.rfile.read(length)
        return kind & 15, bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
class Many(socketserver.ThreadingMixIn, http.server.HTTPServer): daemon_threads = True
Many(("127.0.0.1", 8000), Inside).serve_forever()
"""


def opened(server: Server, path: str, token: str | None = None, **headers: str) -> ClientConnection:
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    url = server.url.replace("http", "ws") + path
    return connect(url, additional_headers=headers, proxy=None, open_timeout=30)


def test_a_websocket_of_a_server_inside_is_carried_both_ways_with_a_token_and_not_without(
    server: Server, acme: httpx.Client, sandbox: str
) -> None:
    link_to(acme, sandbox, PROGRAM)
    place = f"/v1/sandboxes/{sandbox}/ports/8000/http/a%20b/{quote('é')}?x=%2F"
    token = server.token("acme")
    with opened(server, place, token, cookie="of=another", **{"x-own": "passed"}) as messages:
        assert "set-cookie" not in (messages.response.headers if messages.response else {})
        target, *names = str(messages.recv(timeout=30)).split("|")
        assert target == "/a%20b/%C3%A9?x=%2F"
        assert "x-own" in names
        assert not {"authorization", "cookie"} & set(names)
        messages.send("héllo")
        assert messages.recv(timeout=30) == "héllo"
        messages.send(b"\x00\xff" * 5000)
        assert messages.recv(timeout=30) == b"\x00\xff" * 5000
    with pytest.raises(InvalidStatus) as refused:
        opened(server, place)
    assert refused.value.response.status_code == 401
    # HTTP has the same paths, also those that are not ASCII.
    assert acme.get(place).text == "/a%20b/%C3%A9?x=%2F"


def test_a_signed_link_carries_websockets_for_as_long_as_it_lasts(
    server: Server, acme: httpx.Client
) -> None:
    sandbox = created(acme)
    link = link_to(acme, sandbox, PROGRAM)
    with opened(server, f"{link}chat?room=1", origin="null") as messages:
        assert str(messages.recv(timeout=30)).startswith("/chat?room=1|")
        with pytest.raises(InvalidStatus) as refused:
            opened(server, f"{link[:-8]}AAAAAAA/chat")
        assert refused.value.response.status_code == 404
        assert acme.delete(f"/v1/sandboxes/{sandbox}").status_code == 204
        # With its sandbox everything that leads to it ends.
        with pytest.raises(ConnectionClosed):
            messages.recv(timeout=30)
    with pytest.raises(InvalidStatus) as gone:
        opened(server, f"{link}chat")
    assert gone.value.response.status_code == 404


def test_a_link_that_has_ended_opens_no_websocket_and_its_twin_does(
    server: Server, acme: httpx.Client, sandbox: str
) -> None:
    lasting = link_to(acme, sandbox, PROGRAM)
    links = f"/v1/sandboxes/{sandbox}/ports/8000/links"
    short = acme.post(links, json={"seconds": 1}).json()["path"]
    made_at = time.time()
    while time.time() < made_at + 2:
        time.sleep(0.1)
    with pytest.raises(InvalidStatus) as ended:
        opened(server, f"{short}chat")
    assert ended.value.response.status_code == 404
    with opened(server, f"{lasting}chat") as messages:
        assert messages.recv(timeout=30)


def test_a_port_where_nobody_listens_or_speaks_http_only_opens_no_websocket(
    server: Server, acme: httpx.Client, sandbox: str
) -> None:
    token = server.token("acme")
    with pytest.raises(InvalidStatus):
        opened(server, f"/v1/sandboxes/{sandbox}/ports/8000/http/", token)
    link_to(acme, sandbox, "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8000)")
    with pytest.raises(InvalidStatus):
        opened(server, f"/v1/sandboxes/{sandbox}/ports/8000/http/", token)
