"""One connection, from where it was meant to go to its last byte."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from cloister.egress import web
from cloister.egress.caller import Caller
from cloister.egress.first_words import TLS_PORT, FirstWords, hear
from cloister.egress.refusal import Malformed, Refusal, Unreachable
from cloister.egress.relay import Relay
from cloister.egress.upstream import Address
from cloister.egress.ward import Ward
from cloister.policy import Verdict

if TYPE_CHECKING:
    from cloister.egress.depth.conversation import Conversation

_SOL_IP, _SO_ORIGINAL_DST = 0, 80
_ADDRESS = struct.Struct("!HH4s8x")
_WEB = (web.HTTP_PORT, TLS_PORT)


class Passage:
    """The way of one connection: aimed, judged, dialled, carried; told to the owner at each turn.

    How it came in is the affair of who calls these, in that order. The seam for whoever reads
    and changes what passes is `carry`.
    """

    def __init__(self, ward: Ward, caller: Caller) -> None:
        self.ward = ward
        self.caller = caller
        self.name = "?"
        self.port = 0
        self.protocol = "tcp"
        # How to say no in the program's own protocol; a reset where there is none.
        self.say_no: Callable[[Refusal | Unreachable], bytes] | None = None
        self._verdict: Verdict | None = None
        self._number: int | None = None
        self._far: socket.socket | None = None
        self._relay: Relay | None = None
        self._meter = ward.meter if ward.meter.has_limits else None
        self._reads_requests = False
        # The address is what was allowed: nothing that is said could lead anywhere else.
        self._is_by_address = False
        self._addresses: list[Address] = []
        self._failure: Refusal | Unreachable | None = None
        self._conversation: Conversation | None = None

    async def aim(self, name: str, port: int) -> None:
        """Note where it is meant to go, and refuse it unless a rule allows that."""
        self.name, self.port = name, port
        self._verdict = await self.ward.permit(name, port, self.caller.sock)
        self._reads_requests = self.ward.reads_requests(name, port)
        self._is_by_address = not self._reads_requests and self.ward.is_by_address(name)

    @property
    def is_web(self) -> bool:
        """Whether it is known before a word is said that a web client speaks first."""
        if self._is_by_address:
            return False
        return self._reads_requests or self.port in _WEB

    async def redirected(self) -> None:
        """Serve a program that knows nothing of us."""
        try:
            raw = self.caller.sock.getsockopt(_SOL_IP, _SO_ORIGINAL_DST, _ADDRESS.size)
        except OSError:
            raise Refusal("a connection that was led here by no rule") from None
        _, self.port, packed = _ADDRESS.unpack(raw)
        address = IPv4Address(packed)
        self.name = str(address)
        await self.aim(self.ward.name_at(address), self.port)
        first = await self.hear() if self.is_web else None
        await self.reach()
        await self.carry(first)

    async def hear(self) -> FirstWords:
        """Listen to what is said first; a web client speaks at once."""
        try:
            async with asyncio.timeout(self.ward.bounds.head_s):
                first = await hear(self.caller, self.name, self.port, self.ward.bounds)
        except Malformed:
            self.say_no = say_no_in_http
            raise
        except Refusal:
            if self.port == web.HTTP_PORT:
                self.say_no = say_no_in_http
            raise
        except TimeoutError:
            raise Refusal("nothing was asked for in time") from None
        self.protocol = first.protocol
        if first.head is not None:
            self.say_no = say_no_in_http
        return first

    async def reach(self) -> None:
        """Find the addresses, have them checked, tell the owner, dial."""
        ward = self.ward
        await ward.room()
        try:
            addresses = await ward.find(self.name, self.port)
        except Unreachable as failure:
            self._tell_allowed(None)
            if not self._reads_requests:
                raise
            self._failure = failure
            return
        except Refusal as refusal:
            if not self._reads_requests:
                raise
            # Its requests are answered with the reason, where a reset would have none.
            self._tell_denied(refusal)
            self._failure = refusal
            return
        self._tell_allowed(str(addresses[0]))
        if self._reads_requests:
            # For the first request that may be sent, if there is one.
            self._addresses = addresses
        else:
            self._far = await ward.upstream.dial(addresses, self.port)

    async def carry(self, first: FirstWords | None, target: bytes | None = None) -> None:
        """Carry both ways until it is over. Without `first` it is listened for meanwhile."""
        if self._reads_requests and first is not None:
            await self._converse(first, target)
            return
        if self._far is None:
            raise Unreachable("it was not dialled")
        ward, caller = self.ward, self.caller
        relay = Relay(caller.sock, self._far, ward.pipes, ward.bounds.idle_s, self._meter)
        self._relay = relay
        self.say_no = None if first is None or first.head is None else self.say_no
        relay.begin_in()
        outward = asyncio.ensure_future(self._carry_out(relay, self._far, first, target))
        over = asyncio.ensure_future(relay.wait())
        try:
            await asyncio.wait((outward, over), return_when=asyncio.FIRST_COMPLETED)
            if not over.done():
                outward.result()
            await over
        finally:
            outward.cancel()
            over.cancel()
            await asyncio.gather(outward, over, return_exceptions=True)
        if self.protocol == "http":
            await caller.part(ward.bounds.farewell_s, ward.bounds.farewell_bytes)

    async def _converse(self, first: FirstWords, target: bytes | None) -> None:
        from cloister.egress.depth.conversation import Conversation

        self.say_no = None
        ward, caller = self.ward, self.caller
        self._conversation = Conversation(
            ward, caller, self.name, self.port, self._failure or self._addresses, self._number
        )
        await self._conversation.run(first, target)
        await caller.part(ward.bounds.farewell_s, ward.bounds.farewell_bytes)

    async def _carry_out(
        self, relay: Relay, far: socket.socket, first: FirstWords | None, target: bytes | None
    ) -> None:
        if first is None and self._is_by_address:
            first = FirstWords("tcp")
        elif first is None:
            first = await hear(self.caller, self.name, self.port, self.ward.bounds)
            self.protocol = first.protocol
        if first.head is None:
            unread, self.caller.unread = self.caller.unread, b""
            relay.begin_out(unread)
            return
        self._require_no_placeholders(first.head)
        await self.ward.meter.admit("requests")
        relay.passes_out_elsewhere()
        path = web.own_target(first.head.request) if target is None else target
        authority = (self.name, self.port)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            # A server may answer and hang up before it has read all of a request.
            await web.send_on(first.head, path, authority, self.caller, far, relay.touch)

    def _require_no_placeholders(self, head: web.Head) -> None:
        """Plain HTTP carries no secret, and so no placeholder either."""
        headers = [(bytes(name), bytes(value)) for name, value in head.request.headers]
        target = bytes(head.request.target)
        self.ward.secrets.fill(self.name, self.port, verified=False, target=target, headers=headers)

    async def serve(self, way: Callable[[Passage], object]) -> None:
        """Go one of the ways in, and settle what comes of it."""
        error: str | None = None
        try:
            serving = way(self)
            if asyncio.iscoroutine(serving):
                await serving
        except Refusal as refusal:
            error = refusal.reason
            self._tell_denied(refusal)
            await self._answer(refusal)
        except Unreachable as failure:
            error = str(failure)
            await self._answer(failure)
        except OSError as failure:
            error = os.strerror(failure.errno) if failure.errno else str(failure)
        except asyncio.CancelledError:
            error = self.ward.meter.reason
            raise
        except Exception as failure:
            # A fault of ours: the connection fails closed, and its owner hears of it.
            fault = Refusal(f"the gateway failed on it: {type(failure).__name__}", "fault")
            error = fault.reason
            self._tell_denied(fault)
            await self._answer(fault)
        finally:
            self._close(error)

    async def _answer(self, no: Refusal | Unreachable) -> None:
        if self.say_no is None or (self._relay is not None and self._relay.bytes_in):
            return
        bounds = self.ward.bounds
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(bounds.farewell_s):
                await self.caller.say(self.say_no(no))
            await self.caller.part(bounds.farewell_s, bounds.farewell_bytes)

    def _close(self, error: str | None) -> None:
        self.caller.sock.close()
        if self._far is not None:
            self._far.close()
        if self._number is not None:
            way = self._relay if self._conversation is None else self._conversation
            self.ward.tell(
                kind="closed",
                id=self._number,
                protocol=self.protocol,
                bytes_out=self.caller.bytes_out + (0 if way is None else way.bytes_out),
                bytes_in=0 if way is None else way.bytes_in,
                error=error,
            )

    def _tell_allowed(self, address: str | None) -> None:
        self._number = self.ward.next_number()
        verdict = self._verdict
        self.ward.tell(
            kind="connection",
            id=self._number,
            protocol=self.protocol,
            host=self.name,
            port=self.port,
            allowed=True,
            rule="" if verdict is None else verdict.rule,
            reason="" if verdict is None else verdict.reason,
            address=address,
            intercepted=self._reads_requests,
        )

    def _tell_denied(self, refusal: Refusal) -> None:
        self.ward.tell(
            kind="connection",
            protocol=self.protocol,
            host=self.name[:253],
            port=self.port,
            allowed=False,
            rule=refusal.rule,
            reason=refusal.reason[:500],
        )


def say_no_in_http(no: Refusal | Unreachable) -> bytes:
    """Return the answer that a program which speaks HTTP understands."""
    if isinstance(no, Malformed):
        return web.answer(400, "Bad Request", no.reason)
    if isinstance(no, Refusal):
        return web.answer(403, "Forbidden", no.told)
    return web.answer(502, "Bad Gateway", str(no))
