"""HTTP/2 with a server: one request of a connection that carries many."""

from __future__ import annotations

import h2.errors
import h2.exceptions

from cloister.egress.depth.link_h2 import H2Broken, H2Link, Half
from cloister.egress.depth.messages import Headers, RequestHead, ResponseHead, passed_on


class FarH2:
    """One request, and its answer."""

    def __init__(self, link: H2Link, authority: bytes) -> None:
        self._link = link
        self._authority = authority
        self._half = Half(0)
        self.has_begun = False

    @property
    def trailers(self) -> Headers:
        """What came behind the answer's body."""
        return passed_on(self._half.trailers, of_request=False)

    async def ask(self, head: RequestHead) -> None:
        """Send a request as far as its body."""
        try:
            number = self._link.http.get_next_available_stream_id()
        except h2.exceptions.ProtocolError:
            raise H2Broken("the connection has carried all it can") from None
        self._half = self._link.halves[number] = Half(number)
        headers = [
            (b":method", head.method),
            (b":scheme", b"https"),
            (b":authority", self._authority),
            (b":path", head.target),
            *head.headers,
            # What a server needs to be told before it sends any; others take no notice.
            (b"te", b"trailers"),
        ]
        self._link.send_headers(number, headers, last=not head.has_body)
        await self._link.flush()

    async def send(self, data: bytes) -> None:
        """Go on with the request's body."""
        await self._link.send(self._half, data)

    async def finish(self, trailers: Headers) -> None:
        """End the request."""
        await self._link.finish(self._half, trailers)

    async def answer(self) -> ResponseHead:
        """Return the answer as far as its body."""
        half = self._half
        while half.headers is None:
            half.require_whole()
            if self._link.is_over:
                raise H2Broken("the server hung up without an answer")
            await half.wait()
        self.has_begun = True
        status = next((value for name, value in half.headers if name == b":status"), b"")
        if not status.isdigit():
            raise H2Broken("an answer without a status")
        plain = [(name, value) for name, value in half.headers if not name.startswith(b":")]
        return ResponseHead(int(status), passed_on(plain, of_request=False))

    def ready(self) -> bytes | None:
        """Return what has come of the answer's body; nothing is its end, None that more is due."""
        return self._link.ready(self._half)

    async def body(self) -> bytes:
        """Return what comes next of the answer's body; nothing is its end."""
        return await self._link.body(self._half)

    async def close(self) -> None:
        """It is over, or nobody wants the rest."""
        if not self._half.is_over and self._half.number:
            await self._link.cut(self._half, h2.errors.ErrorCodes.CANCEL)
        self._link.drop(self._half)
