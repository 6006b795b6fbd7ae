"""What is said first decides what a connection is; on the web's ports nothing else is spoken."""

from __future__ import annotations

import socket
import ssl

import pytest

from cloister.egress.bounds import Bounds
from cloister.egress.caller import Caller
from cloister.egress.first_words import FirstWords, hear
from cloister.egress.refusal import Refusal


def tls(name: str | None) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    out = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    return out.read()


GET = b"GET / HTTP/1.1\r\nHost: web.test\r\n\r\n"


async def heard(words: bytes, port: int, name: str = "web.test") -> tuple[FirstWords, bytes]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = socket.create_connection(server.getsockname())
        near, _ = server.accept()
    with program, near:
        program.sendall(words)
        program.shutdown(socket.SHUT_WR)
        caller = Caller(near)
        return await hear(caller, name, port, Bounds()), caller.unread


@pytest.mark.parametrize(
    ("words", "port", "protocol"),
    [
        (tls("web.test"), 443, "tls"),
        (tls("WEB.test"), 443, "tls"),
        (tls("web.test"), 8443, "tls"),
        (GET, 80, "http"),
        (GET, 8080, "http"),
        (b"SSH-2.0-x\r\n", 22, "tcp"),
        (b"GETTING", 22, "tcp"),
        (b"\x16", 22, "tcp"),
        (b"", 22, "tcp"),
    ],
)
async def test_what_is_for_the_name_passes(words: bytes, port: int, protocol: str) -> None:
    first, unread = await heard(words, port)
    assert first.protocol == protocol
    if protocol != "http":
        assert unread == words


@pytest.mark.parametrize(
    ("words", "port", "why"),
    [
        (tls("other.test"), 443, "TLS asks for 'other.test'"),
        (tls("other.test"), 8443, "TLS asks for 'other.test'"),
        (tls(None), 443, "without a server name"),
        (GET, 443, "not of TLS"),
        (b"SSH-2.0-x\r\n", 443, "not of TLS"),
        (b"SSH-2.0-x\r\n", 80, "not proper HTTP"),
        (tls("web.test"), 80, "not proper HTTP"),
        (GET.replace(b"web.test", b"other.test"), 80, "Host is 'other.test'"),
        (GET.replace(b"web.test", b"web.test:81"), 80, "Host is 'web.test:81'"),
        (GET.replace(b"/ ", b"http://other.test/ "), 80, "another place than a path"),
        (GET.replace(b"GET /", b"CONNECT x:1"), 80, "another place than a path"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 80, ""),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 8080, ""),
        (b"", 80, "without a word"),
        (b"", 443, "without a word"),
    ],
)
async def test_what_is_not_is_refused(words: bytes, port: int, why: str) -> None:
    with pytest.raises(Refusal) as raised:
        await heard(words, port)
    assert why in raised.value.reason


async def test_an_address_has_no_server_name() -> None:
    first, _ = await heard(tls(None), 443, "203.0.113.7")
    assert first.protocol == "tls"
    with pytest.raises(Refusal):
        await heard(tls("other.test"), 443, "203.0.113.7")
