"""A secret goes to its host in its place, and nowhere else; what comes back has none of it."""

from __future__ import annotations

import base64
import contextlib
import gzip
import zlib
from collections.abc import Callable
from typing import Any

import pytest

VALUE, STAND_IN = "ghp_TheRealValue1234567890", "ghp_PlaceHolderXYZ98765432"


def table(port: int, **place: str) -> dict[str, Any]:
    place = place or {"header": "Authorization"}
    return {"TOKEN": {"from": "env:X", "hosts": [f"web.test:{port}"], **place}}


VALUES = {"TOKEN": {"placeholder": STAND_IN, "value": VALUE}}


def request(port: int, path: str = "/a", *headers: str, host: str = "web.test") -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"Host: {host}:{port}", *headers, "Connection: close", "", ""]
    return "\r\n".join(lines).encode()


BASIC = base64.b64encode(f"me:{STAND_IN}".encode()).decode()
REAL_BASIC = base64.b64encode(f"me:{VALUE}".encode()).decode()


@pytest.mark.parametrize(
    ("place", "sent", "arrives"),
    [
        ({"header": "Authorization"}, f"Authorization: Bearer {STAND_IN}", f"Bearer {VALUE}"),
        ({"header": "authorization"}, f"AUTHORIZATION: token {STAND_IN}", f"token {VALUE}"),
        ({"header": "Authorization"}, f"Authorization: Basic {BASIC}", f"Basic {REAL_BASIC}"),
        ({"header": "X-Api-Key"}, f"X-Api-Key: {STAND_IN}", VALUE),
        ({"basic_user": "me"}, f"Authorization: Basic {BASIC}", f"Basic {REAL_BASIC}"),
    ],
)
async def test_a_secret_is_put_where_it_belongs(
    place: dict[str, str], sent: str, arrives: str, opened: Any, served: Any, anything: Any
) -> None:
    async with served() as far:
        port = far.port
        async with opened(anything(port), secrets=table(port, **place), values=VALUES) as doors:
            seen = await doors.talk("web.test", port, request(port, "/a", sent))
            told = await doors.events("secret")
            everything = str(await doors.events())
    assert seen.startswith(b"HTTP/1.1 200")
    assert far.asked[0][2][sent.partition(":")[0].lower()] == arrives
    assert [(each["what"], each["name"], each["host"]) for each in told] == [
        ("used", "TOKEN", "web.test")
    ]
    assert VALUE not in everything and REAL_BASIC not in everything


async def test_a_secret_is_put_into_a_query(opened: Any, served: Any, anything: Any) -> None:
    async with served() as far:
        secrets = table(far.port, query="key")
        async with opened(anything(far.port), secrets=secrets, values=VALUES) as doors:
            good = await doors.talk(
                "web.test", far.port, request(far.port, f"/a?x=1&key={STAND_IN}&y=2")
            )
            other = await doors.talk(
                "web.test", far.port, request(far.port, f"/a?other={STAND_IN}")
            )
            everything = str(await doors.events())
    assert good.startswith(b"HTTP/1.1 200")
    assert other.startswith(b"HTTP/1.1 403")
    assert far.paths == [f"/a?x=1&key={VALUE}&y=2"]
    assert VALUE not in everything


MISPLACED = [
    ("another header", request(0, "/a", f"X-Other: {STAND_IN}"), "header x-other"),
    ("the path", request(0, f"/{STAND_IN}"), "path"),
    ("a query", request(0, f"/a?b={STAND_IN}"), "path"),
    ("a path in percent", request(0, "/a?b=" + "".join(f"%{ord(c):x}" for c in STAND_IN)), "path"),
    (
        "another basic header",
        request(0, "/a", f"X-Auth: Basic {BASIC}"),
        "header x-auth",
    ),
    (
        "the body",
        f"POST /a HTTP/1.1\r\nHost: web.test:0\r\nContent-Length: {len(STAND_IN) + 4}\r\n"
        f"Connection: close\r\n\r\nt=x&{STAND_IN}".encode(),
        "body",
    ),
    (
        "a body in chunks",
        f"POST /a HTTP/1.1\r\nHost: web.test:0\r\nTransfer-Encoding: chunked\r\n"
        f"Connection: close\r\n\r\n5\r\n{STAND_IN[:5]}\r\n"
        f"{len(STAND_IN) - 5:x}\r\n{STAND_IN[5:]}\r\n0\r\n\r\n".encode(),
        "body",
    ),
    (
        "a trailer",
        f"POST /a HTTP/1.1\r\nHost: web.test:0\r\nTransfer-Encoding: chunked\r\n"
        f"Connection: close\r\n\r\n0\r\nX-T: {STAND_IN}\r\n\r\n".encode(),
        "trailer",
    ),
]


@pytest.mark.parametrize("case", MISPLACED, ids=lambda case: case[0].replace(" ", "-"))
async def test_a_placeholder_elsewhere_is_stopped_and_told(
    case: tuple[str, bytes, str], opened: Any, served: Any, anything: Any
) -> None:
    _, text, place = case
    async with served() as far:
        port = far.port
        sent = text.replace(b"web.test:0", b"web.test:%d" % port)
        async with opened(anything(port), secrets=table(port), values=VALUES) as doors:
            seen = await doors.talk("web.test", port, sent)
            told = await doors.events("secret")
            plain = sent.replace(STAND_IN.encode(), b"n" * len(STAND_IN))
            for part in (STAND_IN[:5], STAND_IN[5:], BASIC):
                plain = plain.replace(part.encode(), b"n" * len(part))
            plain = plain if b"%" not in plain else request(port, "/a?b=%6e")
            twin = await doors.talk("web.test", port, plain)
    assert seen.startswith(b"HTTP/1.1 403"), seen
    assert [(each["what"], each["name"], each["place"]) for each in told] == [
        ("blocked", "TOKEN", place)
    ]
    assert twin.startswith(b"HTTP/1.1 200"), twin
    assert len(far.asked) == 1
    assert STAND_IN.encode() not in far.raw


async def test_another_host_and_plain_http_get_nothing(
    opened: Any, served: Any, anything: Any
) -> None:
    async with served() as far, served(tls=False) as plain:
        rules = [
            *anything(far.port),
            {"name": "o", "host": f"other.test:{far.port}", "record": True, "effect": "allow"},
            {"name": "p", "host": f"web.test:{plain.port}", "record": True, "effect": "allow"},
        ]
        both = {
            "TOKEN": {
                "from": "env:X",
                "hosts": [f"web.test:{far.port}", f"web.test:{plain.port}"],
                "header": "Authorization",
            }
        }
        header = f"Authorization: Bearer {STAND_IN}"
        async with opened(rules, secrets=both, values=VALUES) as doors:
            other = await doors.talk(
                "other.test", far.port, request(far.port, "/a", header, host="other.test")
            )
            clear = await doors.talk(
                "web.test", plain.port, request(plain.port, "/a", header), tls=False
            )
            fronted = await doors.talk(
                "other.test", far.port, request(far.port, "/a", header, host="web.test")
            )
            good = await doors.talk("web.test", far.port, request(far.port, "/a", header))
    assert other.startswith(b"HTTP/1.1 403")
    assert clear.startswith(b"HTTP/1.1 403")
    assert fronted.startswith(b"HTTP/1.1 421")
    assert good.startswith(b"HTTP/1.1 200")
    assert plain.asked == []
    assert [headers["authorization"] for _, _, headers, _ in far.asked] == [f"Bearer {VALUE}"]


async def test_what_a_server_says_back_has_no_value_in_it(
    opened: Any, served: Any, anything: Any
) -> None:
    async with served() as far:
        coded = base64.b64encode(VALUE.encode())
        far.answer = lambda path, headers, body: (
            f"X-Echo: {headers['authorization']}\r\n".encode(),
            f"{headers} {VALUE.encode().hex()} ".encode() + coded,
        )
        async with opened(anything(far.port), secrets=table(far.port), values=VALUES) as doors:
            header = f"Authorization: Bearer {STAND_IN}"
            more = ("Accept-Encoding: gzip", "Range: bytes=0-5")
            seen = await doors.talk("web.test", far.port, request(far.port, "/a", header, *more))
    asked = far.asked[0][2]
    assert asked["authorization"] == f"Bearer {VALUE}"
    assert asked["accept-encoding"] == "identity"
    assert "range" not in asked
    assert seen.startswith(b"HTTP/1.1 200")
    assert b"x-echo: Bearer *****" in seen
    for form in (VALUE.encode(), VALUE.encode().hex().encode(), coded.rstrip(b"=")):
        assert form not in seen


def bare(data: bytes) -> bytes:
    packing = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packing.compress(data) + packing.flush()


PACKED: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("x-gzip", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    ("deflate", zlib.compress),
    ("deflate", bare),
    ("identity", bytes),
]


@pytest.mark.parametrize(("coding", "pack"), PACKED)
async def test_a_compressed_answer_is_unpacked_and_has_no_value_in_it(
    coding: str, pack: Callable[[bytes], bytes], opened: Any, served: Any, anything: Any
) -> None:
    said = b"before " + VALUE.encode() + b" behind" + b"." * 100_000
    async with served() as far:
        far.answer = lambda path, headers, body: (
            f"Content-Encoding: {coding}\r\nETag: one\r\n".encode(),
            pack(said),
        )
        async with opened(anything(far.port), secrets=table(far.port), values=VALUES) as doors:
            seen = await doors.talk("web.test", far.port, request(far.port))
        async with opened(anything(far.port)) as doors:
            untouched = await doors.talk("web.test", far.port, request(far.port))
    masked = said.replace(VALUE.encode(), b"*" * len(VALUE))
    head, _, body = seen.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert coding == "identity" or b"encoding: " + coding.encode() not in head.lower()
    assert _unchunked(head, body) == masked
    assert untouched.endswith(pack(said))
    assert len(far.asked) == 2


def _unchunked(head: bytes, body: bytes) -> bytes:
    if b"chunked" not in head.lower():
        return body
    out, left = b"", body
    while True:
        size, _, left = left.partition(b"\r\n")
        if int(size, 16) == 0:
            return out
        out, left = out + left[: int(size, 16)], left[int(size, 16) + 2 :]


@pytest.mark.parametrize(
    ("coding", "data"),
    [("br", b"whatever"), ("gzip, gzip", b"whatever"), ("zstd", b"whatever")],
)
async def test_an_answer_that_cannot_be_looked_through_is_refused(
    coding: str, data: bytes, opened: Any, served: Any, anything: Any
) -> None:
    async with served() as far:
        said = f"Content-Encoding: {coding}\r\n".encode()
        far.answer = lambda path, headers, body: (said, data)
        async with opened(anything(far.port), secrets=table(far.port), values=VALUES) as doors:
            seen = await doors.talk("web.test", far.port, request(far.port))
        async with opened(anything(far.port)) as doors:
            without = await doors.talk("web.test", far.port, request(far.port))
    assert seen.startswith(b"HTTP/1.1 502")
    assert without.startswith(b"HTTP/1.1 200")
    assert len(far.asked) == 2


@pytest.mark.parametrize("spoilt", [gzip.compress(b"x" * 5000)[:-20], b"no gzip at all"])
async def test_a_compressed_answer_that_is_not_whole_is_cut_off_and_not_ended(
    spoilt: bytes, opened: Any, served: Any, anything: Any
) -> None:
    async with served() as far:
        far.answer = lambda path, headers, body: (b"Content-Encoding: gzip\r\n", spoilt)
        async with opened(anything(far.port), secrets=table(far.port), values=VALUES) as doors:
            reader, writer = await doors.connect("web.test", far.port)
            writer.write(request(far.port))
            seen = b""
            with contextlib.suppress(OSError):
                while data := await reader.read(65_536):
                    seen += data
            writer.close()
    assert not seen.endswith(b"\r\n0\r\n\r\n")


async def test_a_value_cannot_be_printed_by_accident(opened: Any, anything: Any) -> None:
    async with opened(anything(443), secrets=table(443), values=VALUES) as doors:
        secrets = doors.ward.secrets
        headers = [(b"authorization", STAND_IN.encode())]
        filled = secrets.fill("web.test", 443, verified=True, target=b"/", headers=headers)
        assert VALUE not in repr(secrets._bound)
    assert filled.headers == [(b"authorization", VALUE.encode())]
    assert VALUE not in repr(filled)
