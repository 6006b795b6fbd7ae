"""HTTP/1.1 with a server: one request at a time, the connection kept for the next."""

from __future__ import annotations

import h11

from cloister.egress.bounds import Bounds
from cloister.egress.depth.messages import (
    Headers,
    RequestHead,
    ResponseHead,
    passed_on,
    without,
)
from cloister.egress.depth.streams import Stream
from cloister.egress.refusal import Malformed, Unreachable

_SWITCHING = 101
_CUT = "the server's answer was cut off"


class FarH1:
    """One connection."""

    def __init__(self, stream: Stream, authority: bytes, bounds: Bounds) -> None:
        self.stream = stream
        self._authority = authority
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=bounds.head_bytes)
        self._held = b""
        self._is_over = False
        self.has_begun = False
        self.trailers: Headers = []

    @property
    def is_free(self) -> bool:
        """Whether another request can be sent by it."""
        is_done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        # What has come behind an answer is no answer to the next request.
        return is_done and not self._http.trailing_data[0] and self.stream.is_quiet()

    async def ask(self, head: RequestHead) -> None:
        """Send a request as far as its body."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        self._is_over = self.has_begun = False
        self.trailers = []
        headers = [(b"Host", self._authority), *without(head.headers, b"content-length")]
        if head.length is not None:
            headers.append((b"Content-Length", b"%d" % head.length))
        elif head.has_body:
            headers.append((b"Transfer-Encoding", b"chunked"))
        if head.upgrade is not None:
            headers += [(b"Connection", b"Upgrade"), (b"Upgrade", head.upgrade)]
        try:
            request = h11.Request(method=head.method, target=head.target, headers=headers)
        except h11.LocalProtocolError:
            # Its text quotes what is wrong, which may have a secret's value in it.
            raise Malformed("a request that cannot be written in HTTP/1.1") from None
        self._held = self._sent(request)
        if not head.has_body:
            await self.finish([])

    async def send(self, data: bytes) -> None:
        """Go on with the request's body."""
        held, self._held = self._held, b""
        await self.stream.write(held + self._sent(h11.Data(data=data)))

    async def finish(self, trailers: Headers) -> None:
        """End the request."""
        held, self._held = self._held, b""
        try:
            ending = h11.EndOfMessage(headers=trailers)
        except h11.LocalProtocolError:
            raise Malformed("trailers that cannot be written in HTTP/1.1") from None
        await self.stream.write(held + self._sent(ending))

    def _sent(self, event: h11.Event) -> bytes:
        try:
            return self._http.send(event) or b""
        except h11.LocalProtocolError as error:
            raise Malformed(f"not proper HTTP: {error}") from None

    async def answer(self) -> ResponseHead:
        """Return the answer as far as its body; what was said before it is left out."""
        while True:
            event = self._event()
            if event is h11.NEED_DATA:
                await self._fill()
            elif isinstance(event, h11.Response) or (
                isinstance(event, h11.InformationalResponse) and event.status_code == _SWITCHING
            ):
                headers = passed_on(event.headers, of_request=False)
                return ResponseHead(event.status_code, headers, bytes(event.reason))
            elif not isinstance(event, h11.InformationalResponse):
                raise Unreachable("the server hung up without an answer")

    async def _fill(self) -> None:
        data = await self.stream.read()
        self.has_begun = self.has_begun or bool(data)
        self._http.receive_data(data)

    def _event(self) -> object:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError:
            raise Unreachable(_CUT if self.has_begun else "the server hung up") from None

    def ready(self) -> bytes | None:
        """Return what has come of the answer's body; nothing is its end, None that more is due."""
        if self._is_over:
            return b""
        while True:
            event = self._event()
            if event is h11.NEED_DATA:
                return None
            if isinstance(event, h11.Data):
                if event.data:
                    return bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self._is_over = True
                self.trailers = passed_on(event.headers, of_request=False)
                return b""
            else:
                raise Unreachable(_CUT)

    async def body(self) -> bytes:
        """Return what comes next of the answer's body; nothing is its end."""
        while (data := self.ready()) is None:
            await self._fill()
        return data

    def switched(self) -> bytes:
        """Return what came behind the answer that made something else of the connection."""
        return bytes(self._http.trailing_data[0])
