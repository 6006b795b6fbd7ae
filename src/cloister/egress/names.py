"""Answers questions for names: allowed ones with an address of the book, others with nothing.

Nothing is ever asked of anybody else, so nothing can be said to anybody by asking.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections import deque
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Any

import dns.exception
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from cloister.egress.book import BookFull
from cloister.egress.caller import Caller
from cloister.errors import CloisterError, RequestError
from cloister.policy.destinations import parse_host

# Long enough that a program's next connection needs no question, short enough to be asked again.
_TTL_S = 30
_MOST_BYTES = 4096
_MOST_IN_ONE_CONNECTION = 64
_MOST_WAITING = 64
_RETRY_S = 0.01


class NotYet(CloisterError):
    """The owner has not taken in what it must know first; the same question a moment later."""


class Names:
    """The name server of one sandbox.

    `may_ask` decides on a canonical name, `address_of` returns what stands for it (or None while
    the owner cannot be told), `tell` is told of each question.
    """

    def __init__(
        self,
        may_ask: Callable[[str], bool],
        address_of: Callable[[str], IPv4Address | None],
        tell: Callable[[str, str, bool, str], None],
    ) -> None:
        self._may_ask = may_ask
        self._address_of = address_of
        self._tell = tell
        self._waiting: deque[tuple[bytes, Any]] = deque(maxlen=_MOST_WAITING)
        self._retrying: asyncio.TimerHandle | None = None

    def answer(self, question: bytes) -> bytes | None:
        """Return the answer to a datagram, or None for what deserves none; raises NotYet."""
        if len(question) > _MOST_BYTES:
            return None
        try:
            asked = dns.message.from_wire(question)
            if asked.flags & dns.flags.QR:
                return None
            return self._respond(asked).to_wire(max_size=512)
        except (dns.exception.DNSException, ValueError, NotImplementedError):
            return None

    def _respond(self, asked: dns.message.Message) -> dns.message.Message:
        # Of the extensions none is spoken, which a resolver takes from their absence.
        response = dns.message.make_response(asked, recursion_available=True)
        response.use_edns(False)
        if asked.opcode() != dns.opcode.QUERY:
            response.set_rcode(dns.rcode.NOTIMP)
            return response
        if len(asked.question) != 1 or asked.question[0].rdclass != dns.rdataclass.IN:
            response.set_rcode(dns.rcode.REFUSED)
            return response
        question = asked.question[0]
        record = dns.rdatatype.to_text(question.rdtype)
        text = question.name.to_text(omit_final_dot=True)
        name = _canonical(text)
        if name is None or not self._may_ask(name):
            self._tell(name or text, record, False, "no rule allows any port of it")
            response.set_rcode(dns.rcode.NXDOMAIN)
            return response
        if question.rdtype == dns.rdatatype.A:
            self._add_address(response, question.name.to_text(), name)
        else:
            # It exists, but has nothing of the kind: IPv6 leads nowhere.
            self._tell(name, record, True, "")
        return response

    def _add_address(self, response: dns.message.Message, spelt: str, name: str) -> None:
        try:
            address = self._address_of(name)
        except BookFull:
            self._tell(name, "A", False, "the sandbox has asked for too many names")
            response.set_rcode(dns.rcode.REFUSED)
            return
        if address is None:
            raise NotYet("the owner does not listen")
        self._tell(name, "A", True, "")
        response.answer.append(dns.rrset.from_text(spelt, _TTL_S, "IN", "A", str(address)))

    def answer_waiting(self, sock: socket.socket, most: int) -> int:
        """Answer what has come to a socket, at most so many; return how many there were."""
        for count in range(most):
            try:
                data, sender = sock.recvfrom(_MOST_BYTES + 1)
            except OSError:
                # Nothing more; or an error that an earlier answer met, which is nobody's loss.
                return count
            self._reply(sock, data, sender)
        return most

    def _reply(self, sock: socket.socket, data: bytes, sender: Any) -> None:
        try:
            answer = self.answer(data)
        except NotYet:
            self._waiting.append((data, sender))
            if self._retrying is None:
                loop = asyncio.get_running_loop()
                self._retrying = loop.call_later(_RETRY_S, self._retry, sock)
            return
        if answer is not None:
            with contextlib.suppress(OSError):
                sock.sendto(answer, sender)

    def _retry(self, sock: socket.socket) -> None:
        self._retrying = None
        if sock.fileno() < 0:
            return
        for _ in range(len(self._waiting)):
            self._reply(sock, *self._waiting.popleft())

    async def serve(self, caller: Caller, wait_s: float) -> None:
        """Answer the questions of one connection."""
        with contextlib.suppress(OSError, TimeoutError):
            for _ in range(_MOST_IN_ONE_CONNECTION):
                async with asyncio.timeout(wait_s):
                    size = int.from_bytes(await caller.exactly(2), "big")
                    if not 0 < size <= _MOST_BYTES:
                        return
                    answer = await self._patient_answer(await caller.exactly(size))
                    if answer is None:
                        return
                    await caller.say(len(answer).to_bytes(2, "big") + answer)

    async def _patient_answer(self, question: bytes) -> bytes | None:
        while True:
            try:
                return self.answer(question)
            except NotYet:
                # Nothing tells when the owner has read; it is asked again.
                await asyncio.sleep(_RETRY_S)


def _canonical(text: str) -> str | None:
    """Return the one spelling of a name, or None for what is no host's name."""
    try:
        name = parse_host(text)
    except RequestError:
        return None
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name
    return None
