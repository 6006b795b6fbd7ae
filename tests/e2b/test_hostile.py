"""Requests that no client of E2B would send: each is refused, and its harmless twin is not."""

from __future__ import annotations

import gzip
import json
import socket
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx
import pytest
from e2b import Sandbox


class Pointed(Protocol):
    url: str


def frame(message: Any, flags: int = 0) -> bytes:
    body = json.dumps(message).encode()
    return bytes([flags]) + len(body).to_bytes(4, "big") + body


def stream_end(answer: httpx.Response) -> dict[str, Any]:
    """The last frame of a stream."""
    data, last = answer.content, b"{}"
    while data:
        length = int.from_bytes(data[1:5], "big")
        last, data = data[5 : 5 + length], data[5 + length :]
    found: dict[str, Any] = json.loads(last)
    return found


START = "/process.Process/Start"
STAT = "/filesystem.Filesystem/Stat"
STREAM = {"content-type": "application/connect+json"}


def start_message(script: str) -> dict[str, Any]:
    return {"process": {"cmd": "/bin/bash", "args": ["-c", script]}, "stdin": False}


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Access-Token": ""},
        {"X-Access-Token": "0" * 64},
        {"X-Access-Token": "é" * 3},
        {},
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", START),
        ("POST", STAT),
        ("GET", "/files?path=/etc/passwd"),
        ("POST", "/files?path=x"),
        ("GET", "/envs"),
        ("GET", "/metrics"),
    ],
)
def test_without_its_token_a_sandbox_answers_nothing(
    server: Pointed, shared: Sandbox, headers: dict[str, str], method: str, path: str
) -> None:
    named = {"E2b-Sandbox-Id": shared.sandbox_id, "E2b-Sandbox-Port": "49983"}
    raw = {name: value.encode() for name, value in {**named, **headers}.items()}
    answer = httpx.request(method, server.url + path, headers=raw, content=b"{}")
    assert answer.status_code == 401
    assert answer.json()["code"] in (401, "unauthenticated")


def test_with_it_each_of_them_answers(wire: httpx.Client) -> None:
    assert wire.post(STAT, json={"path": "/etc/passwd"}).status_code == 200
    assert wire.get("/files?path=/etc/passwd").status_code == 200
    assert wire.get("/envs").json()["E2B_SANDBOX"] == "true"
    assert wire.get("/metrics").json()["mem_total"] > 0
    done = wire.post(START, content=frame(start_message("exit 0")), headers=STREAM)
    assert stream_end(done) == {}


def test_the_token_of_one_sandbox_does_not_open_another(
    server: Pointed, shared: Sandbox, sandbox: Sandbox
) -> None:
    token = sandbox._envd_access_token
    assert token
    named = {"E2b-Sandbox-Port": "49983", "X-Access-Token": token}
    url = f"{server.url}/files?path=/etc/hostname"
    foreign = httpx.get(url, headers={**named, "E2b-Sandbox-Id": shared.sandbox_id})
    assert foreign.status_code == 401
    own = httpx.get(url, headers={**named, "E2b-Sandbox-Id": sandbox.sandbox_id})
    assert own.status_code in (200, 404)


@pytest.mark.parametrize("id", ["", "i", "../x", "sb_" + "a" * 26, "I" + "A" * 26, "i" * 5000])
def test_an_id_that_cannot_be_one_is_not_found(server: Pointed, key: str, id: str) -> None:
    named = {"E2b-Sandbox-Id": id, "E2b-Sandbox-Port": "49983"}
    assert httpx.get(f"{server.url}/health", headers=named).status_code == 502
    answer = httpx.get(f"{server.url}/sandboxes/{id[:600]}", headers={"X-API-KEY": key})
    assert answer.status_code in (200, 404, 501)
    if answer.status_code == 200:
        assert id == ""


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"\x00\xff\xff\xff\xff" + b"x" * 100, "resource_exhausted"),
        (b"\x00\x00\x50\x00\x00", "resource_exhausted"),
        (b"\x01\x00\x00\x00\x02{}", "unimplemented"),
        (b"\x00\x00\x00\x00\x05{}", "invalid_argument"),
        (b"\x00\x00\x00\x00\x02[]", "invalid_argument"),
        (b"\x00\x00\x00\x00\x03{{{", "invalid_argument"),
        (b"", "invalid_argument"),
        (frame({"process": "text"}), "invalid_argument"),
        (frame({"process": {"cmd": ""}}), "invalid_argument"),
        (frame({"process": {"cmd": "a\0b"}}), "invalid_argument"),
        (frame({"process": {"cmd": "/bin/true", "envs": {"A": 1}}}), "invalid_argument"),
        (frame({"process": {"cmd": "/bin/true", "envs": {"A=": "1"}}}), "invalid_argument"),
        (frame({"process": {"cmd": "/bin/true", "cwd": "~root"}}), "invalid_argument"),
        (
            frame({"process": {"cmd": "sh"}, "pty": {"size": {"rows": -1, "cols": 9}}}),
            "invalid_argument",
        ),
    ],
)
def test_frames_that_are_wrong_are_refused_inside_the_stream(
    wire: httpx.Client, content: bytes, code: str
) -> None:
    answer = wire.post(START, content=content, headers=STREAM)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/connect+json"
    assert stream_end(answer)["error"]["code"] == code


def test_a_deep_or_large_message_is_refused_before_it_is_held(wire: httpx.Client) -> None:
    deep = wire.post(STAT, content=b'{"path":' + b"[" * 100_000, headers=JSON)
    assert deep.json()["code"] == "invalid_argument"
    large = wire.post(STAT, content=b" " * (5 * 2**20), headers=JSON)
    assert large.status_code == 413


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("path", ["/init", "/freeze", "/upgrade", "/fsfreeze", "/x"])
def test_what_is_internal_elsewhere_is_not_served(wire: httpx.Client, path: str) -> None:
    assert wire.post(path, content=b"{}").status_code == 404


def test_a_path_leads_nowhere_but_inside(wire: httpx.Client, shared: Sandbox) -> None:
    up = "../" * 40
    answer = wire.get("/files", params={"path": f"{up}etc/hostname"})
    assert answer.text.strip() == shared.commands.run("cat /etc/hostname").stdout.strip()
    nul = wire.get("/files", params={"path": "/etc/pass\0wd"})
    assert nul.status_code == 400
    assert wire.get("/files", params={"path": "/" + "x/" * 4000}).status_code == 400
    for device in ("/dev/zero", "/dev/tty", "/proc/self/mem"):
        assert wire.get("/files", params={"path": device}).status_code in (400, 403, 404, 500)
    assert wire.get("/files", params={"path": "/proc/self/status"}).text.startswith("Name:")


def test_a_range_of_a_file_is_given_alone(wire: httpx.Client, shared: Sandbox) -> None:
    shared.files.write("ranged", "0123456789")
    for asked, status, content in [
        ("bytes=2-4", 206, "234"),
        ("bytes=7-", 206, "789"),
        ("bytes=8-99", 206, "89"),
        ("bytes=99-", 200, "0123456789"),
        ("bytes=5-2", 200, "0123456789"),
        ("rows=1-2", 200, "0123456789"),
    ]:
        answer = wire.get("/files", params={"path": "ranged"}, headers={"range": asked})
        assert (answer.status_code, answer.text) == (status, content)
        assert answer.headers["content-length"] == str(len(content))
    head = wire.head("/files", params={"path": "ranged"})
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "10", b"")


def test_a_link_that_a_program_made_is_followed_inside(shared: Sandbox) -> None:
    shared.commands.run("ln -sfn / everything")
    inside = shared.files.list("/home/user/everything")
    names = {each.name for each in inside}
    assert "home" in names
    assert shared.files.read("everything/etc/hostname") == shared.files.read("/etc/hostname")


def test_a_small_upload_that_inflates_without_end_is_stopped_by_the_disk(server: Pointed) -> None:
    sandbox = Sandbox.create()
    try:
        bomb = gzip.compress(b"\0" * (16 * 2**20))
        token = sandbox._envd_access_token
        assert token
        headers = {
            "E2b-Sandbox-Id": sandbox.sandbox_id,
            "E2b-Sandbox-Port": "49983",
            "X-Access-Token": token,
            "Content-Type": "application/octet-stream",
            "Content-Encoding": "gzip",
        }
        whole = httpx.post(
            f"{server.url}/files?path=zeros", content=bomb, headers=headers, timeout=60
        )
        assert whole.status_code == 200
        assert sandbox.files.get_info("zeros").size == 16 * 2**20
        cut = httpx.post(f"{server.url}/files?path=cut", content=bomb[:-100], headers=headers)
        assert cut.status_code == 400
        assert not sandbox.files.exists("cut")
        other = {**headers, "Content-Encoding": "br"}
        assert (
            httpx.post(f"{server.url}/files?path=x", content=b"", headers=other).status_code == 400
        )
    finally:
        sandbox.kill()


@pytest.mark.parametrize(
    "body",
    [
        b"--b\r\n",
        b"--b\r\nContent-Disposition: form-data; name=file; filename=x\r\n\r\nhalf",
        b"--b\r\n" + b"A: " + b"x" * 100_000 + b"\r\n\r\n--b--\r\n",
        b"nothing of the kind",
    ],
)
def test_a_form_that_is_broken_writes_nothing(wire: httpx.Client, body: bytes) -> None:
    headers = {"content-type": "multipart/form-data; boundary=b"}
    answer = wire.post("/files?path=/home/user/broken", content=body, headers=headers)
    assert answer.status_code == 400 or answer.json() == []
    assert wire.get("/files?path=/home/user/broken").status_code == 404


def test_a_client_that_stops_in_the_middle_of_an_upload_leaves_nothing(
    server: Pointed, wire: httpx.Client, shared: Sandbox
) -> None:
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname or "", place.port or 0)) as client:
        head = f"POST /files?path=/home/user/partly HTTP/1.1\r\nHost: {place.netloc}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in wire.headers.items())
        head += "Content-Type: application/octet-stream\r\nContent-Length: 1000\r\n\r\nabc"
        client.sendall(head.encode())
    listing = shared.commands.run("sleep 0.2; ls -A /home/user").stdout
    assert "partly" not in listing


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[]", 400),
        (b"{", 400),
        (b'{"templateID": 5}', 400),
        (b'{"templateID": "base", "timeout": 0}', 400),
        (b'{"templateID": "base", "timeout": 1e400}', 400),
        (b'{"templateID": "base", "timeout": 99999999}', 400),
        (b'{"templateID": "base", "envVars": {"A": 1}}', 400),
        (b'{"templateID": "base", "envVars": {"A=B": "1"}}', 400),
        (b'{"templateID": "base", "metadata": []}', 400),
        (b'{"templateID": "../../etc"}', 404),
        (b'{"templateID": "base", "volumeMounts": [{"name": "../x", "path": "/y"}]}', 400),
        (b'{"templateID": "base", "network": {"rules": {"x": []}}}', 501),
        (b'{"templateID": "base", "iam": {"tokens": {}}, "mcp": {"a": 1}}', 501),
    ],
)
def test_a_create_that_is_wrong_is_refused_in_json(
    server: Pointed, key: str, body: bytes, status: int
) -> None:
    answer = httpx.post(f"{server.url}/v2/sandboxes", content=body, headers={"X-API-KEY": key})
    assert answer.status_code == status, answer.text
    assert answer.json()["code"] == status
    assert answer.json()["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/templates"),
        ("GET", "/secrets"),
        ("GET", "/sandboxes/x/logs"),
    ],
)
def test_what_is_not_supported_says_so(server: Pointed, key: str, method: str, path: str) -> None:
    answer = httpx.request(method, server.url + path, headers={"X-API-KEY": key}, content=b"{}")
    assert answer.status_code == 501
    assert answer.json()["code"] == 501
    unknown = httpx.request(method, server.url + path, content=b"{}")
    assert unknown.status_code == 401


def test_a_key_without_the_scope_may_not(server: Any) -> None:
    reader = {"X-API-KEY": server.key("acme", "--scope", "sandboxes:read")}
    assert httpx.get(f"{server.url}/v2/sandboxes", headers=reader).status_code == 200
    refused = httpx.post(f"{server.url}/v2/sandboxes", headers=reader, content=b"{}")
    assert (refused.status_code, refused.json()["code"]) == (403, 403)


def test_one_create_with_one_key_makes_one_sandbox(server: Pointed, key: str) -> None:
    headers = {"X-API-KEY": key, "Idempotency-Key": "only-once"}
    url, body = f"{server.url}/v2/sandboxes", {"templateID": "base", "metadata": {}}
    one, two = (httpx.post(url, json=body, headers=headers) for _ in range(2))
    assert one.status_code == two.status_code == 201
    assert one.json()["sandboxID"] == two.json()["sandboxID"]
    httpx.delete(f"{server.url}/sandboxes/{one.json()['sandboxID']}", headers=headers)


def test_a_kernel_cannot_be_reached_past_its_token(server: Pointed, shared: Sandbox) -> None:
    named = {"E2b-Sandbox-Id": shared.sandbox_id, "E2b-Sandbox-Port": "49999"}
    code = {"code": "1"}
    assert httpx.post(f"{server.url}/execute", json=code, headers=named).status_code == 401
    wrong = {**named, "X-Access-Token": "0" * 64}
    assert httpx.post(f"{server.url}/contexts", json={}, headers=wrong).status_code == 401
