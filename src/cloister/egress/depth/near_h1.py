"""HTTP/1.1 with the program inside: its requests, one after the other, and what it is answered."""

from __future__ import annotations

import asyncio

import h11

from cloister.egress.bounds import Bounds
from cloister.egress.depth.messages import Headers, RequestHead, ResponseHead, passed_on
from cloister.egress.depth.streams import Stream
from cloister.egress.refusal import Malformed
from cloister.egress.shapes import require_plain
from cloister.egress.web import Head, own_target, require_host

_WEBSOCKET = b"websocket"


class NearH1:
    """One connection. Of a request first `next`, then `body`, then the answer."""

    def __init__(
        self, stream: Stream, name: str, port: int, bounds: Bounds, head: Head | None = None
    ) -> None:
        self._stream = stream
        self._name, self._port = name, port
        self._bounds = bounds
        self._http = (
            h11.Connection(h11.SERVER, max_incomplete_event_size=bounds.head_bytes)
            if head is None
            else head.reading
        )
        self._first = None if head is None else head.request
        self._held = b""
        self._is_read = False
        self.trailers: Headers = []

    async def next(self, target: bytes | None = None) -> RequestHead | None:
        """Return the next request, or None when there are no more; `target` is what it is for."""
        request = await self._next_request()
        if request is None:
            return None
        require_host(request, self._name, self._port)
        if target is None:
            target = own_target(request)
        if request.method == b"CONNECT":
            raise Malformed("a request for a tunnel, within a connection")
        self._is_read = False
        self.trailers = []
        framing = {name: value for name, value in request.headers if name in _FRAMING}
        length = framing.get(b"content-length")
        upgrade = framing.get(b"upgrade", b"").strip().lower()
        has_body = b"transfer-encoding" in framing or (length is not None and int(length) > 0)
        if not has_body:
            # Its end has come with it.
            self._is_read = isinstance(self._event(), h11.EndOfMessage)
        return RequestHead(
            method=bytes(request.method),
            target=bytes(target),
            headers=passed_on(request.headers, of_request=True),
            has_body=has_body,
            length=None if length is None else int(length),
            upgrade=upgrade if upgrade == _WEBSOCKET and request.method == b"GET" else None,
        )

    async def _next_request(self) -> h11.Request | None:
        if self._first is not None:
            request, self._first = self._first, None
            return request
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        if self._http.our_state is not h11.IDLE:
            return None
        taken = bytearray(self._http.trailing_data[0])
        event = self._event()
        if event is h11.NEED_DATA:
            if not taken:
                try:
                    await self._take(taken)
                except ConnectionError:
                    # Gone without a word, between two requests.
                    return None
                event = self._event()
            if event is h11.NEED_DATA:
                # Begun, and so to be ended in a time.
                async with asyncio.timeout(self._bounds.head_s):
                    while event is h11.NEED_DATA:
                        await self._take(taken)
                        event = self._event()
        if not isinstance(event, h11.Request):
            return None
        require_plain(bytes(taken[: len(taken) - len(self._http.trailing_data[0])]))
        return event

    async def _take(self, taken: bytearray) -> None:
        data = await self._stream.read()
        taken += data
        self._http.receive_data(data)

    def _event(self) -> object:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise Malformed(f"not proper HTTP: {error}") from None

    async def body(self) -> bytes:
        """Return what comes next of the body; nothing is its end."""
        if self._is_read:
            return b""
        if self._http.they_are_waiting_for_100_continue:
            await self.flush()
            go_on = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            await self._stream.write(self._http.send(go_on) or b"")
        while True:
            event = self._event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._stream.read())
            elif isinstance(event, h11.Data):
                if event.data:
                    return bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self._is_read = True
                self.trailers = passed_on(event.headers, of_request=True)
                return b""
            else:
                raise Malformed("the program went away in the middle of a request")

    @property
    def is_awaited(self) -> bool:
        """Whether the program sends its body only when it is told to."""
        return bool(self._http.they_are_waiting_for_100_continue)

    async def respond(self, head: ResponseHead, *, last: bool = False) -> None:
        """Begin the answer; with `last` the connection ends after it."""
        headers = [*head.headers, (b"connection", b"close")] if last else head.headers
        self._held = self._sent(
            h11.Response(status_code=head.status, headers=headers, reason=head.reason)
        )

    async def switch(self, head: ResponseHead) -> bytes:
        """Say that the connection is something else from here on; return what came of it."""
        headers = [(b"connection", b"upgrade"), (b"upgrade", _WEBSOCKET), *head.headers]
        said = self._sent(
            h11.InformationalResponse(status_code=101, headers=headers, reason=head.reason)
        )
        await self._stream.write(said)
        return bytes(self._http.trailing_data[0])

    async def send(self, data: bytes) -> None:
        """Go on with the answer's body."""
        held, self._held = self._held, b""
        await self._stream.write(held + self._sent(h11.Data(data=data)))

    async def finish(self, trailers: Headers) -> None:
        """End the answer."""
        held, self._held = self._held, b""
        # Only what is sent in chunks can have something behind it.
        try:
            ending = self._sent(h11.EndOfMessage(headers=trailers))
        except Malformed:
            ending = self._sent(h11.EndOfMessage())
        await self._stream.write(held + ending)

    async def flush(self) -> None:
        """Send what is held for the sake of fewer packets."""
        if self._held:
            held, self._held = self._held, b""
            await self._stream.write(held)

    def _sent(self, event: h11.Event) -> bytes:
        try:
            return self._http.send(event) or b""
        except h11.LocalProtocolError as error:
            raise Malformed(f"an answer that cannot be passed on: {error}") from None


_FRAMING = frozenset((b"content-length", b"transfer-encoding", b"upgrade"))
