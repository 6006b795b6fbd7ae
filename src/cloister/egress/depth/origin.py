"""The server behind an intercepted connection: dialled when first needed, verified, used again."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import ssl
from collections.abc import Sequence
from typing import Protocol

from cloister.egress.bounds import Bounds
from cloister.egress.depth.far_h1 import FarH1
from cloister.egress.depth.far_h2 import FarH2
from cloister.egress.depth.link_h2 import H2Link
from cloister.egress.depth.messages import Headers, RequestHead, ResponseHead
from cloister.egress.depth.streams import PlainStream, Stream, TlsStream
from cloister.egress.refusal import Refusal, Unreachable
from cloister.egress.upstream import Address, Upstream

_MOST_CONNECTIONS = 16


class Far(Protocol):
    """One request at a server, whichever HTTP it speaks."""

    has_begun: bool

    @property
    def trailers(self) -> Headers: ...
    async def ask(self, head: RequestHead) -> None: ...
    async def send(self, data: bytes) -> None: ...
    async def finish(self, trailers: Headers) -> None: ...
    async def answer(self) -> ResponseHead: ...
    def ready(self) -> bytes | None: ...
    async def body(self) -> bytes: ...


class Trust:
    """What servers are verified against; made once for each bundle of certificates."""

    def __init__(self) -> None:
        self._contexts: dict[tuple[bytes, bool], ssl.SSLContext] = {}

    def context_for(self, bundle: str, *, many: bool) -> ssl.SSLContext:
        """Return what to be a client with; `many` where HTTP/2 may be spoken."""
        key = (hashlib.sha256(bundle.encode()).digest(), many)
        if key not in self._contexts:
            context = ssl.create_default_context(cadata=bundle)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.set_alpn_protocols(["h2", "http/1.1"] if many else ["http/1.1"])
            self._contexts[key] = context
        return self._contexts[key]


TRUST = Trust()


class Origin:
    """All connections to one server that serve one connection from inside."""

    def __init__(
        self,
        upstream: Upstream,
        addresses: Sequence[Address] | Refusal | Unreachable,
        name: str,
        port: int,
        bounds: Bounds,
        context: ssl.SSLContext | None,
    ) -> None:
        self._upstream = upstream
        self._addresses = addresses
        self._name, self._port = name, port
        self._bounds = bounds
        self._context = context
        usual = 80 if context is None else 443
        shown = f"[{name}]" if ":" in name else name
        self._authority = (shown if port == usual else f"{shown}:{port}").encode()
        self._socks: dict[Stream, socket.socket] = {}
        self._free: list[FarH1] = []
        self._link: H2Link | None = None
        self._listening: asyncio.Task[None] | None = None
        self._dialling = asyncio.Lock()
        self._room = asyncio.Semaphore(_MOST_CONNECTIONS)

    async def open(self) -> tuple[Far, bool]:
        """Return a way to ask one thing, and whether it has been used before; `settle` it."""
        if self._link is None or self._link.is_over:
            await self._room.acquire()
            try:
                far, is_used = await self._find()
            except BaseException:
                self._room.release()
                raise
            if isinstance(far, FarH2):
                # One connection is enough for all of them.
                self._room.release()
            return far, is_used
        return FarH2(self._link, self._authority), True

    async def _find(self) -> tuple[Far, bool]:
        while self._free:
            far = self._free.pop()
            if far.is_free:
                return far, True
            self._hang_up(far.stream)
        # One at a time: the first may find out that one connection is enough for all.
        async with self._dialling:
            if self._link is not None and not self._link.is_over:
                return FarH2(self._link, self._authority), True
            sock = await self._upstream.dial(self._found(), self._port)
            return await self._begin(sock), False

    def _found(self) -> Sequence[Address]:
        self.require_allowed()
        if isinstance(self._addresses, Refusal | Unreachable):
            raise Unreachable(str(self._addresses))
        return self._addresses

    def require_allowed(self) -> None:
        """Raise the Refusal of a host that must not be dialled."""
        if isinstance(self._addresses, Refusal):
            # Another one each time: what is raised again grows by where it was raised.
            raise Refusal(self._addresses.reason, self._addresses.rule)

    async def _begin(self, sock: socket.socket) -> Far:
        inner = (
            PlainStream(sock)
            if self._context is None
            else TlsStream(sock, self._context, server_side=False, name=self._name)
        )
        stream = _Far(inner)
        self._socks[stream] = sock
        try:
            if isinstance(inner, TlsStream):
                await self._agree(inner)
            if not isinstance(inner, TlsStream) or inner.protocol != "h2":
                return FarH1(stream, self._authority, self._bounds)
            link = H2Link(stream, self._bounds, client_side=True)
            await link.begin()
        except BaseException:
            self._hang_up(stream)
            raise
        self._link = link
        self._listening = asyncio.create_task(self._listen(link))
        return FarH2(link, self._authority)

    def _hang_up(self, stream: Stream) -> None:
        sock = self._socks.pop(stream, None)
        if sock is not None:
            sock.close()

    async def _agree(self, tls: TlsStream) -> None:
        try:
            async with asyncio.timeout(self._bounds.dial_s):
                await tls.handshake()
        except ssl.SSLCertVerificationError as error:
            raise Unreachable(
                f"the certificate of {self._name} does not hold: {error.verify_message}"
            ) from None
        except ssl.SSLError as error:
            raise Unreachable(f"TLS with {self._name} failed: {error.reason}") from None
        except TimeoutError:
            raise Unreachable(f"{self._name} did not agree on TLS in time") from None
        except OSError:
            raise Unreachable(f"{self._name} hung up while TLS was agreed on") from None

    async def _listen(self, link: H2Link) -> None:
        with contextlib.suppress(Unreachable):
            await link.listen()
        self._hang_up(link.stream)

    async def settle(self, far: Far) -> None:
        """Take back what was opened: for the next, if it was used up in order."""
        if isinstance(far, FarH2):
            with contextlib.suppress(Unreachable):
                await far.close()
        elif isinstance(far, FarH1):
            self._room.release()
            if far.is_free:
                self._free.append(far)
            else:
                self._hang_up(far.stream)

    def close(self) -> None:
        """Hang up."""
        if self._listening is not None:
            self._listening.cancel()
        for sock in self._socks.values():
            sock.close()
        self._socks.clear()


class _Far:
    """A stream whose breaking is the server's doing, and is said so."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    @property
    def bytes_read(self) -> int:
        return self._stream.bytes_read

    @property
    def bytes_written(self) -> int:
        return self._stream.bytes_written

    async def read(self) -> bytes:
        try:
            return await self._stream.read()
        except OSError:
            raise Unreachable("the server broke the connection off") from None

    async def write(self, data: bytes) -> None:
        try:
            await self._stream.write(data)
        except OSError:
            raise Unreachable("the server broke the connection off") from None

    def is_quiet(self) -> bool:
        return self._stream.is_quiet()

    async def end(self) -> None:
        await self._stream.end()
