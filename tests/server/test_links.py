"""Links to servers inside that mean no good: to whoever follows them, and to other sandboxes."""

from __future__ import annotations

import contextlib
import json

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from cloister.ledger import Called
from cloister.ledger.reading import list_ledgers, read_entries

from .conftest import Server, StartServer, created
from .test_processes import start
from .test_shares import FEW

PROGRAM = r"""
import http.server
class Inside(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        data = str(sorted(name.lower() for name in self.headers)).encode()
        self.send_response(200)
        self.send_header("Set-Cookie", "session=mine; Path=/")
        self.send_header("Strict-Transport-Security", "max-age=31536000")
        self.send_header("Clear-Site-Data", '"*"')
        self.send_header("Referrer-Policy", "unsafe-url")
        self.send_header("X-Inside", "yes")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
http.server.HTTPServer(("127.0.0.1", 8000), Inside).serve_forever()
"""
SILENT = """
import socket
listener, held = socket.create_server(("127.0.0.1", 8000)), []
while True:
    held.append(listener.accept())
"""


def link_to(client: httpx.Client, sandbox: str, program: str) -> str:
    """Have a program listen on port 8000, and return a link to it."""
    base = f"/v1/sandboxes/{sandbox}"
    client.put(f"{base}/files/content?path=/tmp/p.py", content=program.encode())
    start(client, sandbox, "exec python3 /tmp/p.py")
    waiting = {"command": "until (: < /dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.02; done"}
    argv = ["bash", "-c", waiting["command"]]
    assert client.post(f"{base}/run", json={"command": argv}).json()["exit_code"] == 0
    return link_of(client, sandbox)


def link_of(client: httpx.Client, sandbox: str) -> str:
    """A link to port 8000, whoever listens there."""
    made = client.post(f"/v1/sandboxes/{sandbox}/ports/8000/links", json={})
    return str(made.json()["path"])


def test_pages_of_one_sandbox_leave_nothing_with_a_browser_for_those_of_another(
    server: Server, acme: httpx.Client, sandbox: str
) -> None:
    stranger = server.client(None, cookie="session=of-another", **{"x-own": "passed"})
    answer = stranger.get(link_to(acme, sandbox, PROGRAM))
    assert (answer.status_code, answer.headers["x-inside"]) == (200, "yes")
    for name in ("set-cookie", "strict-transport-security", "clear-site-data"):
        assert name not in answer.headers
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "'x-own'" in answer.text
    assert "'cookie'" not in answer.text


def test_what_is_asked_by_a_link_is_recorded_without_the_link(
    server: Server, acme: httpx.Client, sandbox: str
) -> None:
    link = link_to(acme, sandbox, PROGRAM)
    stranger = server.client(None)
    assert stranger.get(link.replace("/links/", "/%6Cinks/", 1)).status_code == 200
    assert stranger.post(link, content=b"sent").status_code == 501
    state = server.directory / "state"
    (name,) = [each for each in list_ledgers(state) if each.startswith("server-")]
    calls = [each.payload for each in read_entries(state, name) if each.kind == "server.called"]
    done = [call for call in calls if isinstance(call, Called) and call.token == "link"]
    assert ("POST", 501, "acme", sandbox) in [
        (call.method, call.status, call.tenant, call.sandbox) for call in done
    ]
    assert link.split("/")[2] not in str(calls)


def test_an_address_whose_slashes_are_encoded_is_refused_and_not_the_servers_failure(
    server: Server, acme: httpx.Client, sandbox: str
) -> None:
    link = link_to(acme, sandbox, PROGRAM)
    stranger = server.client(None)
    assert stranger.get(link.replace("/links/", "/links%2F", 1)).status_code == 400
    place = f"/v1%2fsandboxes/{sandbox}/ports/8000/http/"
    assert acme.get(place).status_code == 400
    with pytest.raises(InvalidStatus) as refused:
        connect(server.url.replace("http", "ws", 1) + link.replace("/links/", "/links%2F", 1))
    assert refused.value.response.status_code == 400
    # Further on it is the server's inside to read.
    assert stranger.get(f"{link}a%2Fb").status_code == 200


def test_a_server_inside_that_never_answers_is_not_waited_for_by_nobody(
    start_server: StartServer,
) -> None:
    server = start_server(FEW)
    acme = server.client(server.token("acme"))
    sandbox = created(acme)
    link = link_to(acme, sandbox, SILENT)
    stranger = server.client(None)
    for _ in range(45):
        with contextlib.suppress(httpx.TimeoutException):
            stranger.get(link, timeout=0.1)
    assert acme.get("/v1/sandboxes").status_code == 200
    assert acme.delete(f"/v1/sandboxes/{sandbox}").status_code == 204


ENDLESS = """
import http.server
class Inside(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if self.path.endswith("short"):
            self.wfile.write(b"0\\r\\n\\r\\n")
            return
        import time
        while True:
            self.wfile.write(b"1\\r\\n.\\r\\n")
            time.sleep(0.1)
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Inside).serve_forever()
"""


def test_links_and_answers_end_with_the_token_they_were_made_with_and_no_other(
    server: Server, acme: httpx.Client, sandbox: str
) -> None:
    made = json.loads(server.run("token", "create", "--tenant", "acme", "--json"))
    client, stranger = server.client(made["token"]), server.client(None)
    link, other = link_to(client, sandbox, ENDLESS), link_of(acme, sandbox)
    inside = f"/v1/sandboxes/{sandbox}/ports/8000/http/"
    with contextlib.ExitStack() as stack:
        theirs = [
            stack.enter_context(who.stream("GET", path))
            for who, path in ((stranger, link), (client, inside))
        ]
        others = stack.enter_context(stranger.stream("GET", other)).iter_raw(1)
        assert stranger.get(f"{link}short").status_code == 200
        server.run("token", "revoke", made["id"])
        for answer in theirs:
            with pytest.raises(httpx.TransportError):
                for _ in answer.iter_raw():
                    continue
        assert stranger.get(f"{link}short").status_code == 404
        assert stranger.get(f"{other}short").status_code == 200
        assert next(others) == b"."
