"""On what terms one connection's requests go: the judge, the secrets, and who is told of them."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloister.egress.bounds import Bounds
from cloister.egress.depth.messages import (
    Headers,
    RequestHead,
    ResponseHead,
    spelt,
    values_of,
    without,
)
from cloister.egress.depth.unpacking import CODINGS, Unpacker
from cloister.egress.depth.websocket import OutgoingFrames
from cloister.egress.presence import while_present
from cloister.egress.refusal import Malformed, Refusal, Unreachable
from cloister.egress.secrets.bound import Misplaced
from cloister.egress.secrets.scrub import Finder, Scrubber
from cloister.errors import RequestError
from cloister.model.approvals import Question
from cloister.policy import Effect, HttpRequest, Verdict

if TYPE_CHECKING:
    from cloister.egress.ward import Ward

# An answer that is looked through must be readable, and whole: of one in pieces that the program
# chooses, each would have too little of a value to be found.
_NOT_WHEN_LOOKED_THROUGH = (b"accept-encoding", b"range", b"if-range", b"sec-websocket-extensions")
# What a program sends by a WebSocket is looked through for every placeholder, whatever the host.
_NOT_WHEN_FRAMES_ARE = (b"sec-websocket-extensions",)
# Of a body that is compressed: unpacked it has another length, and is another one.
_OF_WHAT_IS_PACKED = (
    *(b"content-encoding", b"content-length", b"content-md5", b"content-digest"),
    *(b"repr-digest", b"digest", b"etag"),
)
# By which a server may be told to take a request for one of another method.
_OVERRIDES = (b"x-http-method-override", b"x-method-override", b"x-http-method")
_MOST_PATH, _MOST_REASON = 1000, 500


@dataclass(frozen=True, slots=True)
class Permit:
    """A request that may be sent: as it is sent, and by which verdict."""

    head: RequestHead
    verdict: Verdict
    used: tuple[tuple[str, str], ...]


class Terms:
    """Of one connection to one host."""

    def __init__(
        self,
        ward: Ward,
        sock: socket.socket,
        name: str,
        port: int,
        *,
        is_tls: bool,
        connection: int | None,
    ) -> None:
        self._ward = ward
        self._sock = sock
        self._name, self._port = name, port
        self._is_tls = is_tls
        self._connection = connection
        self._values = ward.secrets.values_for(name, port)
        self._placeholders = ward.secrets.placeholders

    @property
    def bounds(self) -> Bounds:
        """How much and how long."""
        return self._ward.bounds

    async def permit(self, head: RequestHead, hold: Callable[[], Awaitable[bytes]]) -> Permit:
        """Decide on a request; raises Refusal unless it may be sent.

        `hold` reads the whole of its body first, for a person who is asked about it.
        """
        request = self._request(head.method, head)
        verdict = self._judge(request)
        other = self._other_method(head)
        if other is not None:
            # A server may take it for either, so both must be allowed.
            also = self._judge(self._request(other, head))
            verdict = also if also.effect is Effect.ASK else verdict
        filled = self._ward.secrets.fill(
            self._name,
            self._port,
            verified=self._is_tls,
            target=head.target,
            headers=head.headers,
        )
        await self._ward.meter.admit("requests")
        if verdict.effect is Effect.ASK:
            verdict = await self._ask(verdict.rule, request, head, await hold(), other)
        for name, place in filled.used:
            await self._require_first_use(name, place, request)
        headers = filled.headers
        if self._values is not None:
            headers = without(headers, *_NOT_WHEN_LOOKED_THROUGH)
            headers = [*headers, (b"accept-encoding", b"identity")]
        elif self._placeholders is not None:
            headers = without(headers, *_NOT_WHEN_FRAMES_ARE)
        sent = dataclasses.replace(head, target=filled.target, headers=headers)
        return Permit(sent, verdict, filled.used)

    def _request(self, method: bytes, head: RequestHead) -> HttpRequest:
        try:
            return HttpRequest(self._name, self._port, method.decode("latin-1"), head.path)
        except RequestError as error:
            raise Malformed(f"not proper HTTP: {error}") from None

    def _other_method(self, head: RequestHead) -> bytes | None:
        found = {value.strip() for name, value in head.headers if spelt(name) in _OVERRIDES}
        found -= {b"", head.method}
        if len(found) > 1:
            raise Malformed("a request that may be taken for ones of several methods")
        return next(iter(found), None)

    def _judge(self, request: HttpRequest) -> Verdict:
        verdict = self._ward.judge(request)
        if verdict.effect is Effect.DENY:
            raise Refusal(verdict.reason, verdict.rule)
        return verdict

    async def _ask(
        self, rule: str, request: HttpRequest, head: RequestHead, body: bytes, other: bytes | None
    ) -> Verdict:
        more = [] if other is None else [f"which may be taken for {other.decode('latin-1')}"]
        if head.upgrade is not None:
            more.append("to be a WebSocket, of which nothing more is asked")
        # As it came: a person decides without seeing a secret, and no answer has one in it.
        question = Question.of_request(
            rule,
            self._name,
            self._port,
            method=request.method,
            path=request.canonical or head.path,
            target=head.path,
            headers=head.headers,
            body=body,
            subject=", ".join(more),
        )
        # For a program that is gone nobody is asked, and nothing is sent.
        return await while_present(self._sock, self._ward.ask_for(question), rule)

    async def _require_first_use(self, name: str, place: str, request: HttpRequest) -> None:
        ward = self._ward
        use = (name, self._name, self._port)
        if use in ward.asked_secrets or not ward.secrets.asks_first(name):
            return
        question = Question(
            "secret",
            f"secrets.{name}",
            self._name,
            self._port,
            method=request.method,
            path=request.canonical or "",
            subject=f"{name} in {place}",
        )
        await while_present(self._sock, ward.ask_for(question), question.rule)
        ward.asked_secrets.add(use)

    async def room(self) -> None:
        """Wait until the owner can be told of a request that is let out."""
        await self._ward.room()

    def hold(self, count: int) -> None:
        """Count what is kept until it is decided on; less than nothing lets it go."""
        self._ward.hold(count)

    def scrubber(self) -> Scrubber | None:
        """Return what takes values out of an answer, if any is bound to this host."""
        return None if self._values is None else Scrubber(self._values)

    def unpacker(self, answer: ResponseHead) -> Unpacker | None:
        """Return what makes an answer readable, where it was compressed all the same.

        Raises Unreachable where nobody here can read it.
        """
        if self._values is None:
            return None
        said = b",".join(values_of(answer.headers, b"content-encoding")).lower().split(b",")
        codings = [each.strip() for each in said if each.strip() not in (b"", b"identity")]
        if not codings:
            return None
        if len(codings) > 1 or codings[0] not in CODINGS:
            raise Unreachable(
                "the answer is compressed, though that was not asked for, in a way that is not "
                "read here: it cannot be looked through for secrets"
            )
        return Unpacker(codings[0])

    def scrubbed(self, answer: ResponseHead) -> ResponseHead:
        """Return the head of an answer without values, and as the one of an unpacked body."""
        if self._values is None:
            return answer
        headers = answer.headers
        if self.unpacker(answer) is not None:
            headers = without(headers, *_OF_WHAT_IS_PACKED)
        masked = self._values.masked
        headers = [(masked(name), masked(value)) for name, value in headers]
        return ResponseHead(answer.status, headers, masked(answer.reason))

    def finder(self) -> Finder | None:
        """Return what stops a body at the first placeholder, if there are any."""
        return None if self._placeholders is None else Finder(self._placeholders)

    def frames(self) -> OutgoingFrames | None:
        """Return what looks through the frames of a WebSocket, if there are placeholders."""
        if self._placeholders is None:
            return None
        return OutgoingFrames(self, self._placeholders, self._name)

    def require_nothing(self, finder: Finder, head: RequestHead) -> None:
        """Refuse a body in which a placeholder was found."""
        if finder.found is not None:
            raise Misplaced(finder.found, "body", self._name)

    def require_clean(self, trailers: Headers, head: RequestHead) -> None:
        """Refuse placeholders behind a body."""
        for name, value in trailers:
            self._ward.secrets.require_none(name + b": " + value, "trailer", self._name)

    def tell_begun(self, head: RequestHead, permit: Permit) -> int:
        """Tell the owner of a request that is about to be sent; return its number.

        `head` is the request as it came: that of the permit has values in it.
        """
        number = self._ward.next_number()
        verdict = permit.verdict
        self._tell(head, verdict.rule, verdict.reason, allowed=True, id=number)
        for name, place in permit.used:
            self._tell_secret("used", name, place, number)
        return number

    def tell_denied(self, head: RequestHead | None, refusal: Refusal) -> None:
        """Tell the owner of a request that was not sent, or not to its end."""
        self._tell(head, refusal.rule, refusal.reason, allowed=False, id=None)
        if isinstance(refusal, Misplaced):
            self._tell_secret("blocked", refusal.name, refusal.place, None)

    def _tell(
        self, head: RequestHead | None, rule: str, reason: str, *, allowed: bool, id: int | None
    ) -> None:
        event = {
            "kind": "request",
            "protocol": "https" if self._is_tls else "http",
            "host": self._name,
            "port": self._port,
            "method": "?" if head is None else head.method.decode("latin-1")[:40],
            "path": "?" if head is None else head.path[:_MOST_PATH],
            "connection": self._connection,
            "allowed": allowed,
            "rule": rule,
            "reason": reason[:_MOST_REASON],
        }
        self._ward.tell(**event if id is None else {**event, "id": id})

    def _tell_secret(self, what: str, name: str, place: str, request: int | None) -> None:
        self._ward.tell(
            kind="secret",
            what=what,
            name=name,
            host=self._name,
            port=self._port,
            place=place[:200],
            request=request,
        )

    def tell_over(
        self,
        number: int,
        *,
        status: int | None,
        bytes_out: int,
        bytes_in: int,
        request_digest: str | None,
        response_digest: str | None,
        error: str | None,
    ) -> None:
        """Tell the owner how a request ended."""
        self._ward.tell(
            kind="answered",
            id=number,
            status=status,
            bytes_out=bytes_out,
            bytes_in=bytes_in,
            request_digest=request_digest,
            response_digest=response_digest,
            error=error,
        )
