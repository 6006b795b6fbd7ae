"""HTTP/2 with the program inside: many requests at once, each of them as if it came alone."""

from __future__ import annotations

import h2.errors

from cloister.egress.depth.link_h2 import H2Link, Half
from cloister.egress.depth.messages import Headers, RequestHead, ResponseHead, passed_on
from cloister.egress.refusal import Malformed, Misdirected
from cloister.egress.web import parse_authority


class NearH2:
    """One request of a connection, and what it is answered."""

    def __init__(self, link: H2Link, half: Half) -> None:
        self._link = link
        self._half = half
        self._held: Headers | None = None
        self.has_answered = False

    @property
    def trailers(self) -> Headers:
        """What came behind the body."""
        return passed_on(self._half.trailers, of_request=True)

    @property
    def is_awaited(self) -> bool:
        """A body that is not read is not waited for here: its stream ends alone."""
        return False

    def head(self, name: str, port: int) -> RequestHead:
        """Return what is asked for; h2 has seen to it that no pseudo-header is there twice."""
        headers = self._half.headers or []
        pseudo = {key: value for key, value in headers if key.startswith(b":")}
        method, target = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
        if method == b"CONNECT" or b":protocol" in pseudo:
            raise Malformed("a request for a tunnel, within a connection")
        if pseudo.get(b":scheme") != b"https":
            raise Malformed("a request in TLS that says it is not")
        if not target.startswith(b"/") and not (target == b"*" and method == b"OPTIONS"):
            raise Malformed("a request that names another place than a path of this host")
        if not target.isascii() or any(byte <= 0x20 or byte == 0x7F for byte in target):
            raise Malformed("a path with bytes that no path has")
        hosts = [value for key, value in headers if key in (b":authority", b"host")]
        if not hosts:
            raise Misdirected(f"a request without an authority, sent to {name}")
        for host in hosts:
            text = host.decode("latin-1")
            if parse_authority(text, port) != (name, port):
                raise Misdirected(
                    f"authority is {text[:100]!a}, but the connection is to {name}:{port}"
                )
        plain = [(key, value) for key, value in headers if not key.startswith(b":")]
        if any(_is_control(byte) for _, value in plain for byte in value):
            raise Malformed("a header with bytes that no header has")
        lengths = [value for key, value in plain if key == b"content-length"]
        if len(lengths) > 1:
            raise Malformed("a request with two lengths")
        if lengths and not lengths[0].isdigit():
            raise Malformed("a request whose length is no number")
        return RequestHead(
            method=method,
            target=target,
            headers=_with_one_cookie(passed_on(plain, of_request=True)),
            has_body=self._half.has_body,
            length=int(lengths[0]) if lengths else None,
        )

    async def body(self) -> bytes:
        """Return what comes next of the body; nothing is its end."""
        return await self._link.body(self._half)

    async def respond(self, head: ResponseHead, *, last: bool = False) -> None:
        """Begin the answer."""
        self._held = [(b":status", b"%d" % head.status), *head.headers]
        self.has_answered = True

    async def send(self, data: bytes) -> None:
        """Go on with the answer's body."""
        self._say_head(last=False)
        await self._link.send(self._half, data)

    async def finish(self, trailers: Headers) -> None:
        """End the answer."""
        if self._held is not None and not trailers:
            self._say_head(last=True)
            await self._link.flush()
            return
        self._say_head(last=False)
        await self._link.finish(self._half, trailers)

    async def flush(self) -> None:
        """Send what is held for the sake of fewer packets."""
        self._say_head(last=False)
        await self._link.flush()

    def _say_head(self, *, last: bool) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._half.require_whole()
            self._link.send_headers(self._half.number, held, last=last)

    async def close(self) -> None:
        """It is over; what the program still sends of it is not read."""
        if not self._half.is_over:
            await self._link.cut(self._half, h2.errors.ErrorCodes.NO_ERROR)
        self._link.drop(self._half)

    async def cut(self) -> None:
        """Break it off, so that it is not taken for whole."""
        await self._link.cut(self._half, h2.errors.ErrorCodes.INTERNAL_ERROR)


def _is_control(byte: int) -> bool:
    return (byte < 0x20 and byte != 0x09) or byte == 0x7F


def _with_one_cookie(headers: Headers) -> Headers:
    """HTTP/2 may send a cookie in pieces, which HTTP/1 does not know."""
    cookies = [value for name, value in headers if name == b"cookie"]
    if len(cookies) < 2:
        return headers
    others = [(name, value) for name, value in headers if name != b"cookie"]
    return [*others, (b"cookie", b"; ".join(cookies))]
