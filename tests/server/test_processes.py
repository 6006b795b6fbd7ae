"""Processes over HTTP and WebSocket: held for whoever comes, or one connection's own."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK
from websockets.sync.client import ClientConnection, connect

from .conftest import Server


@contextmanager
def socket_to(server: Server, client: httpx.Client, path: str) -> Iterator[ClientConnection]:
    headers = {"authorization": client.headers["authorization"]}
    url = server.url.replace("http", "ws") + path
    with connect(url, additional_headers=headers, proxy=None, max_size=2**22) as socket:
        yield socket


def start(client: httpx.Client, sandbox: str, command: str, **more: Any) -> str:
    body = {"command": command, **more}
    answer = client.post(f"/v1/sandboxes/{sandbox}/processes", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def heard(socket: ClientConnection) -> tuple[bytes, dict[str, Any]]:
    output = b""
    for message in socket:
        if isinstance(message, bytes):
            output += message[1:]
        elif "ended" in (said := json.loads(message)):
            return output, said["ended"]
    raise AssertionError("no end")


def test_a_held_process_is_heard_by_whoever_comes(
    server: Server, acme: httpx.Client, sandbox: str
) -> None:
    process = start(acme, sandbox, "echo begun; read line; echo got $line", stdin=True)
    one = f"/v1/sandboxes/{sandbox}/processes/{process}"
    with socket_to(server, acme, f"{one}/stream") as first:
        assert first.recv() == b"\1begun\n"
    with socket_to(server, acme, f"{one}/stream") as second:
        assert second.recv() == b"\1begun\n"
        assert acme.post(f"{one}/stdin", content=b"word\n").status_code == 204
        output, ended = heard(second)
    assert (output, ended["exit_code"]) == (b"got word\n", 0)
    assert acme.get(one).json()["result"]["exit_code"] == 0


def test_a_quiet_websocket_outlives_the_patience_for_slow_clients(
    server: Server, acme: httpx.Client, sandbox: str
) -> None:
    # The server waits one second for a client in the middle of a request; this is none.
    with socket_to(server, acme, f"/v1/sandboxes/{sandbox}/processes/own") as socket:
        socket.send(json.dumps({"command": "sleep 3; echo late"}))
        output, ended = heard(socket)
    assert (output, ended["exit_code"]) == (b"late\n", 0)


def test_a_held_process_is_signalled_and_ended(acme: httpx.Client, sandbox: str) -> None:
    base = f"/v1/sandboxes/{sandbox}/processes"
    first, second = (start(acme, sandbox, "exec sleep 1000") for _ in range(2))
    assert acme.post(f"{base}/{first}/signal", json={"signal": "SIGTERM"}).status_code == 204
    assert acme.delete(f"{base}/{second}").status_code == 204
    while (found := acme.get(f"{base}/{first}").json())["running"]:
        continue
    assert found["result"]["signal"] == 15
    assert acme.get(f"{base}/{second}").json()["result"]["reason"] == "cancelled"
    assert len(acme.get(base).json()["processes"]) == 2


def test_an_owned_process_ends_with_its_connection(
    server: Server, acme: httpx.Client, sandbox: str
) -> None:
    path = f"/v1/sandboxes/{sandbox}/processes/own"
    with socket_to(server, acme, path) as socket:
        socket.send(json.dumps({"command": "echo $$ > pid; sync; echo up; sleep 1000 & wait"}))
        assert "started" in json.loads(socket.recv())
        assert socket.recv() == b"\1up\n"
    gone = "while kill -0 $(cat pid) 2>/dev/null; do sleep 0.05; done"
    body = {"command": gone, "timeout": 20}
    assert acme.post(f"/v1/sandboxes/{sandbox}/run", json=body).json()["exit_code"] == 0


def test_a_terminal_has_a_size_and_hears_what_is_typed(
    server: Server, acme: httpx.Client, sandbox: str
) -> None:
    with socket_to(server, acme, f"/v1/sandboxes/{sandbox}/processes/own") as socket:
        command = "stty size; read x; stty size; read x"
        socket.send(json.dumps({"command": command, "pty": [33, 44]}))
        said = read_until(socket, b"33 44\r\n")
        socket.send(json.dumps({"resize": [55, 66]}))
        socket.send(b"x\n")
        said += read_until(socket, b"55 66\r\n")
        socket.send(b"\n")
        assert heard(socket)[1]["exit_code"] == 0


def read_until(socket: ClientConnection, wanted: bytes) -> bytes:
    output = b""
    while wanted not in output:
        message = socket.recv(timeout=20)
        if isinstance(message, bytes):
            output += message[1:]
    return output


def test_output_waits_for_a_client_that_does_not_read(
    server: Server, acme: httpx.Client, sandbox: str
) -> None:
    with socket_to(server, acme, f"/v1/sandboxes/{sandbox}/processes/own") as socket:
        socket.send(json.dumps({"command": "head -c 4000000 /dev/zero; echo end >&2"}))
        size, errors = 0, b""
        for message in socket:
            if isinstance(message, str):
                continue
            if message[0] == 1:
                size += len(message) - 1
                # Without this it stops at the credit: half a mebibyte.
                if size < 4_000_000:
                    # What it said last may have been its end.
                    with suppress(ConnectionClosedOK):
                        socket.send(json.dumps({"read": [1, len(message) - 1]}))
            else:
                errors += message[1:]
    assert (size, errors) == (4_000_000, b"end\n")


@pytest.mark.parametrize(
    "said", ['{"read": [1, 5]}', '{"unknown": 1}', "[" * 5000, '{"signal": 99}']
)
def test_a_client_that_talks_nonsense_is_cut_off_and_harms_nobody(
    server: Server, acme: httpx.Client, sandbox: str, said: str
) -> None:
    with socket_to(server, acme, f"/v1/sandboxes/{sandbox}/processes/own") as socket:
        socket.send(json.dumps({"command": "sleep 1000"}))
        assert "started" in json.loads(socket.recv())
        socket.send(said)
        with pytest.raises(ConnectionClosedError):
            socket.recv()
    assert socket.close_code == 4400
    body = {"command": "echo well"}
    answer = acme.post(f"/v1/sandboxes/{sandbox}/run", json=body).json()
    assert base64.b64decode(answer["stdout"]) == b"well\n"


def test_what_cannot_start_says_why(server: Server, acme: httpx.Client, sandbox: str) -> None:
    with socket_to(server, acme, f"/v1/sandboxes/{sandbox}/processes/own") as socket:
        socket.send(json.dumps({"command": ["/none"]}))
        assert json.loads(socket.recv())["error"]["error"] == "NotFound"
    nothing = acme.post(f"/v1/sandboxes/{sandbox}/processes", json={"command": ["/none"]})
    assert nothing.status_code == 404


def test_files_go_in_and_out_whole(acme: httpx.Client, sandbox: str) -> None:
    files = f"/v1/sandboxes/{sandbox}/files"
    data = secrets.token_bytes(3_000_000)
    where = {"path": "/workspace/a/b"}
    made = acme.put(f"{files}/content", params={**where, "mode": "600"}, content=data)
    assert (made.json()["size"], made.json()["mode"]) == (3_000_000, 0o600)
    read = acme.get(f"{files}/content", params=where)
    assert read.content == data
    part = acme.get(f"{files}/content", params={**where, "offset": 5, "length": 7})
    assert part.content == data[5:12]
    again = acme.get(
        f"{files}/content", params=where, headers={"if-none-match": read.headers["etag"]}
    )
    assert again.status_code == 304
    stale = acme.put(f"{files}/content", params=where, content=b"x", headers={"if-match": '"0-0"'})
    assert stale.status_code == 409
    body = {"path": "/workspace/a/b", "target": "/workspace/c"}
    assert acme.post(f"{files}/move", params=body).status_code == 204
    assert acme.get(f"{files}/stat", params={"path": "/workspace/c"}).json()["kind"] == "file"
    assert acme.get(f"{files}/content", params=where).status_code == 404
    below = {"path": "/workspace/a", "recursive": True}
    assert acme.request("DELETE", files, params=below).status_code == 204
    names = acme.get(files, params={"path": "/workspace"}).json()["entries"]
    assert [entry["name"] for entry in names] == ["c"]


def test_a_name_that_is_no_text_is_a_name(acme: httpx.Client, sandbox: str) -> None:
    files = f"/v1/sandboxes/{sandbox}/files"
    assert acme.put(f"{files}/content?path=/workspace/%FF", content=b"odd").status_code == 200
    listed = acme.get(files, params={"path": "/workspace"}).json()["entries"]
    assert base64.b64decode(listed[0]["name_bytes"]) == b"\xff"
    assert acme.get(f"{files}/content?path=/workspace/%FF").content == b"odd"


def test_a_watch_says_what_changes(server: Server, acme: httpx.Client, sandbox: str) -> None:
    path = f"/v1/sandboxes/{sandbox}/files/watch?path=/workspace"
    with socket_to(server, acme, path) as socket:
        assert json.loads(socket.recv()) == {"ready": True}
        where = {"path": "/workspace/new"}
        acme.put(f"/v1/sandboxes/{sandbox}/files/content", params=where, content=b"x")
        seen = set()
        while "new" not in seen:
            seen.add(json.loads(socket.recv(timeout=20))["path"].rpartition("/")[2])


def test_a_server_inside_is_asked_with_a_token_or_a_link(
    server: Server, acme: httpx.Client, sandbox: str
) -> None:
    program = (
        "import http.server,sys\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        " def do_POST(self):\n"
        "  data=(self.path+' '+self.headers.get('authorization','none')).encode()\n"
        "  self.send_response(201); self.send_header('content-length',str(len(data)))\n"
        "  self.end_headers(); self.wfile.write(data)\n"
        "http.server.HTTPServer(('127.0.0.1',8000),H).serve_forever()\n"
    )
    base = f"/v1/sandboxes/{sandbox}"
    assert acme.get(f"{base}/ports/8000/http/").status_code == 404
    command = {"command": ["python3", "-c", program]}
    assert acme.post(f"{base}/processes", json=command).status_code == 201
    while (answer := acme.post(f"{base}/ports/8000/http/a/b?c=d")).status_code == 404:
        continue
    # The token that opens this door is not shown to what runs behind it.
    assert (answer.status_code, answer.text) == (201, "/a/b?c=d none")
    assert acme.get(f"{base}/ports/99999/http/").status_code == 400
    link = acme.post(f"{base}/ports/8000/links", json={}).json()["path"]
    stranger = server.client(None)
    assert stranger.post(f"{link}x").text == "/x none"
    assert stranger.post(f"{base}/ports/8000/http/x").status_code == 401
    bent = link.replace(link[12], "A" if link[12] != "A" else "B", 1)
    assert stranger.post(f"{bent}x").status_code == 404
    short = acme.post(f"{base}/ports/8000/links", json={"seconds": 0.001}).json()["path"]
    assert stranger.post(f"{short}x").status_code == 404
