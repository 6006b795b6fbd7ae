"""One intercepted connection: TLS ended here, its requests taken one by one, another TLS begun."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import h2.errors

from cloister.egress.depth.exchange import CutOff, Exchange, own_answer
from cloister.egress.depth.far_h1 import FarH1
from cloister.egress.depth.link_h2 import H2Link, Half
from cloister.egress.depth.near_h1 import NearH1
from cloister.egress.depth.near_h2 import NearH2
from cloister.egress.depth.origin import TRUST, Origin
from cloister.egress.depth.streams import PlainStream, Stream, TlsStream
from cloister.egress.depth.switched import carry_switched
from cloister.egress.depth.terms import Terms
from cloister.egress.refusal import Refusal, Unreachable

if TYPE_CHECKING:
    from cloister.egress.caller import Caller
    from cloister.egress.first_words import FirstWords
    from cloister.egress.upstream import Address
    from cloister.egress.ward import Ward


class Conversation:
    """Between a program inside and one host, request by request.

    Instead of addresses there may be the reason why it has none, with which all are answered.
    """

    def __init__(
        self,
        ward: Ward,
        caller: Caller,
        name: str,
        port: int,
        addresses: list[Address] | Refusal | Unreachable,
        number: int | None,
    ) -> None:
        self._ward = ward
        self._caller = caller
        self._name, self._port = name, port
        self._addresses = addresses
        self._number = number
        self._stream: Stream | None = None
        self._requests: set[asyncio.Task[None]] = set()

    @property
    def bytes_out(self) -> int:
        """How much the program has sent, beyond what was read before it came here."""
        return 0 if self._stream is None else self._stream.bytes_read

    @property
    def bytes_in(self) -> int:
        """How much the program was sent."""
        return 0 if self._stream is None else self._stream.bytes_written

    async def run(self, first: FirstWords, target: bytes | None) -> None:
        """Serve the connection until it is over; `target` is of the one request to a proxy."""
        if first.protocol == "tcp":
            raise Refusal(
                f"the rules for {self._name} are on requests, and this is neither TLS nor HTTP"
            )
        depth = self._ward.depth
        if depth is None:
            raise Refusal(f"the rules for {self._name} are on requests, which are not read here")
        if first.protocol == "http":
            await self._run_plain(first, target)
            return
        unread, self._caller.unread = self._caller.unread, b""
        context = depth.leaves.context_for(self._name)
        near = TlsStream(
            self._caller.sock, context, server_side=True, first=unread, meter=self._ward.meter
        )
        self._stream = near
        await self._agree(near)
        is_many = near.protocol == "h2"
        origin = self._origin(TRUST.context_for(depth.bundle, many=is_many))
        terms = Terms(
            self._ward,
            self._caller.sock,
            self._name,
            self._port,
            is_tls=True,
            connection=self._number,
        )
        with contextlib.closing(origin):
            if is_many:
                await self._watched(near, self._serve_many(near, origin, terms))
            else:
                one = NearH1(near, self._name, self._port, self._ward.bounds)
                await self._watched(near, self._serve_one(near, one, origin, terms, None))

    async def _run_plain(self, first: FirstWords, target: bytes | None) -> None:
        unread, self._caller.unread = self._caller.unread, b""
        near = self._stream = PlainStream(self._caller.sock, unread, meter=self._ward.meter)
        bounds = self._ward.bounds
        one = NearH1(near, self._name, self._port, bounds, first.head)
        terms = Terms(
            self._ward,
            self._caller.sock,
            self._name,
            self._port,
            is_tls=False,
            connection=self._number,
        )
        with contextlib.closing(self._origin(None)) as origin:
            await self._watched(near, self._serve_one(near, one, origin, terms, target))

    def _origin(self, context: ssl.SSLContext | None) -> Origin:
        ward = self._ward
        return Origin(ward.upstream, self._addresses, self._name, self._port, ward.bounds, context)

    async def _agree(self, near: TlsStream) -> None:
        try:
            async with asyncio.timeout(self._ward.bounds.head_s):
                await near.handshake()
        except ssl.SSLError as error:
            raise Unreachable(
                f"the program broke TLS off: {error.reason}; it must trust the certificate "
                "in SSL_CERT_FILE"
            ) from None
        except TimeoutError:
            raise Unreachable("the program did not agree on TLS in time") from None

    async def _watched(self, near: Stream, serving: Coroutine[Any, Any, None]) -> None:
        """Serve, and stop when nothing has moved for too long."""
        task = asyncio.create_task(serving)
        seen = -1
        idle_s = self._ward.bounds.idle_s
        try:
            while not task.done():
                await asyncio.wait((task,), timeout=idle_s)
                moved = near.bytes_read + near.bytes_written
                if not task.done() and moved == seen:
                    raise Unreachable(f"nothing was sent for {idle_s:g} s")
                seen = moved
            task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _serve_one(
        self, stream: Stream, near: NearH1, origin: Origin, terms: Terms, target: bytes | None
    ) -> None:
        """Serve HTTP/1.1. With a target it is a proxy's, and only the one request is for it."""
        goes_on = True
        while goes_on:
            try:
                head = await near.next(target)
            except TimeoutError:
                break
            except Refusal as refusal:
                terms.tell_denied(None, refusal)
                await self._refuse(near, refusal)
                break
            if head is None:
                break
            exchange = Exchange(terms, origin, near, head, once=target is not None)
            try:
                goes_on = await exchange.run() and target is None
            except CutOff:
                raise Unreachable("the answer broke off") from None
            if exchange.switched is not None:
                await self._switch(exchange, near, stream, terms)
                return
        await stream.end()

    async def _refuse(self, near: NearH1, refusal: Refusal) -> None:
        answer, body = own_answer(refusal)
        with contextlib.suppress(Refusal):
            # Where not even the beginning was HTTP there is nothing to answer to.
            await near.respond(answer, last=True)
            await near.send(body)
            await near.finish([])

    async def _switch(self, exchange: Exchange, near: NearH1, stream: Stream, terms: Terms) -> None:
        if exchange.switched is None:
            return
        far, answer = exchange.switched
        error: str | None = "cut off in the middle"
        try:
            if not isinstance(far, FarH1):
                raise Unreachable("the server switched protocols on a connection of many")
            unread = await near.switch(answer)
            first = far.switched()
            await carry_switched(stream, unread, far.stream, first, terms, exchange)
            error = None
        except Refusal as refusal:
            error = refusal.reason
            terms.tell_denied(exchange.head, refusal)
            raise Unreachable(refusal.reason) from None
        finally:
            exchange.tell_over(exchange.number, error)

    async def _serve_many(self, stream: Stream, origin: Origin, terms: Terms) -> None:
        """Serve HTTP/2."""
        link = H2Link(stream, self._ward.bounds, client_side=False)

        async def begin(half: Half) -> None:
            if not self._ward.open_request():
                await link.cut(half, h2.errors.ErrorCodes.REFUSED_STREAM)
                link.drop(half)
                return
            task = asyncio.create_task(self._serve_half(link, half, origin, terms))
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)
            task.add_done_callback(lambda _: self._ward.close_request())
            # Taken back: nobody is asked about it any more, and nothing of it is sent.
            half.on_broken = task.cancel

        link.on_request = begin
        try:
            await link.begin()
            await link.listen()
        finally:
            for task in self._requests:
                task.cancel()
            await asyncio.gather(*self._requests, return_exceptions=True)
        await stream.end()

    async def _serve_half(self, link: H2Link, half: Half, origin: Origin, terms: Terms) -> None:
        near = NearH2(link, half)
        try:
            head = near.head(self._name, self._port)
        except Refusal as refusal:
            terms.tell_denied(None, refusal)
            answer, body = own_answer(refusal)
            with contextlib.suppress(Unreachable, OSError):
                await near.respond(answer)
                await near.send(body)
                await near.finish([])
                await near.close()
            return
        try:
            await Exchange(terms, origin, near, head).run()
        except CutOff:
            await near.cut()
        except (Refusal, Unreachable, OSError):
            # The program has taken it back, or is gone.
            await near.cut()
        except Exception as failure:
            # A fault of ours: this request fails closed, the others go on, its owner hears of it.
            fault = Refusal(f"the gateway failed on it: {type(failure).__name__}", "fault")
            terms.tell_denied(head, fault)
            await near.cut()
        finally:
            with contextlib.suppress(OSError):
                await near.close()
