"""One request: judged before anything of it leaves, carried both ways in pieces, told of."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Protocol

from cloister.egress.depth.messages import Headers, RequestHead, ResponseHead
from cloister.egress.depth.origin import Far, Origin
from cloister.egress.depth.terms import Terms
from cloister.egress.refusal import Malformed, Misdirected, Refusal, Unreachable
from cloister.errors import CloisterError
from cloister.model.approvals import HELD_BODY_BYTES

if TYPE_CHECKING:
    from cloister.egress.secrets.scrub import Scrubber

_SWITCHING = 101
# What a server may have begun to do by them is nothing: they may be asked again.
_REPEATABLE = (b"GET", b"HEAD", b"OPTIONS")


class Near(Protocol):
    """The program's side of one request, whichever HTTP it speaks."""

    @property
    def trailers(self) -> Headers: ...
    @property
    def is_awaited(self) -> bool: ...
    async def body(self) -> bytes: ...
    async def respond(self, head: ResponseHead, *, last: bool = False) -> None: ...
    async def send(self, data: bytes) -> None: ...
    async def finish(self, trailers: Headers) -> None: ...
    async def flush(self) -> None: ...


class CutOff(CloisterError):
    """The answer broke off after its beginning: the program must see a cut, not an end."""


class Exchange:
    """A request and its answer."""

    def __init__(
        self, terms: Terms, origin: Origin, near: Near, head: RequestHead, *, once: bool = False
    ) -> None:
        self._terms = terms
        # Whether the connection ends with it.
        self._once = once
        self._origin = origin
        self._near = near
        self._head = head
        self._sent, self._got = hashlib.sha256(), hashlib.sha256()
        self._bytes_out = self._bytes_in = 0
        self._answer: ResponseHead | None = None
        self._has_responded = False
        self._held: bytes | None = None
        self._holding = 0
        self.number = 0
        self.switched: tuple[Far, ResponseHead] | None = None

    async def run(self) -> bool:
        """Do all of it; return whether another request can follow on the same connection.

        Raises CutOff when what the program was sent is not whole.
        """
        try:
            return await self._run()
        finally:
            self._terms.hold(-self._holding)

    async def _run(self) -> bool:
        try:
            self._origin.require_allowed()
            permit = await self._terms.permit(self._head, self._hold)
            await self._terms.room()
        except Refusal as refusal:
            self._terms.tell_denied(self._head, refusal)
            return await self._say_no(refusal)
        error: str | None = None
        number = self.number = self._terms.tell_begun(self._head, permit)
        try:
            await self._carry(permit.head, self._terms.scrubber())
        except Refusal as refusal:
            error = refusal.reason
            self._terms.tell_denied(self._head, refusal)
            return await self._say_no(refusal)
        except Unreachable as failure:
            error = str(failure)
            return await self._say_no(failure)
        except asyncio.CancelledError:
            error = "cut off in the middle"
            raise
        except OSError:
            error = "the program broke the connection off"
            raise
        finally:
            if self.switched is None:
                self.tell_over(number, error)
        return True

    @property
    def head(self) -> RequestHead:
        """What was asked for, as it came."""
        return self._head

    def tell_over(self, number: int, error: str | None) -> None:
        """Tell how it ended."""
        self._terms.tell_over(
            number,
            status=None if self._answer is None else self._answer.status,
            bytes_out=self._bytes_out,
            bytes_in=self._bytes_in,
            request_digest=self._sent.hexdigest() if self._bytes_out else None,
            response_digest=self._got.hexdigest() if self._bytes_in else None,
            error=error,
        )

    async def _carry(self, head: RequestHead, scrubber: Scrubber | None) -> None:
        far = await self._ask(head)
        try:
            if not head.has_body:
                await self._bring(far, scrubber)
                return
            await self._both_ways(far, scrubber)
        finally:
            if self.switched is None:
                await self._origin.settle(far)

    async def _ask(self, head: RequestHead) -> Far:
        far, is_used = await self._origin.open()
        try:
            await far.ask(head)
            if is_used and not head.has_body and head.method in _REPEATABLE:
                # A server may have hung up on a connection that waited for its next request.
                self._answer = await far.answer()
        except Unreachable:
            has_begun = far.has_begun
            await self._origin.settle(far)
            if not is_used or has_begun or head.has_body or head.method not in _REPEATABLE:
                raise
            return await self._ask_again(head)
        except BaseException:
            await self._origin.settle(far)
            raise
        return far

    async def _ask_again(self, head: RequestHead) -> Far:
        far, _ = await self._origin.open()
        try:
            await far.ask(head)
        except BaseException:
            await self._origin.settle(far)
            raise
        return far

    async def _both_ways(self, far: Far, scrubber: Scrubber | None) -> None:
        """Send while the answer comes: a server may answer before it has heard all."""
        sending = asyncio.create_task(self._send(far))
        bringing = asyncio.create_task(self._bring(far, scrubber))
        try:
            await asyncio.wait((sending, bringing), return_when=asyncio.FIRST_COMPLETED)
            if not bringing.done() and not isinstance(sending.exception(), Unreachable):
                # Raises what makes the request one that must not be.
                sending.result()
            await bringing
        finally:
            for task in (sending, bringing):
                task.cancel()
            await asyncio.gather(sending, bringing, return_exceptions=True)
        failure = sending.exception() if not sending.cancelled() else None
        if isinstance(failure, Refusal):
            raise failure

    async def _hold(self) -> bytes:
        """Read the whole body before anything is sent, for whoever decides on it."""
        held = bytearray()
        while self._head.has_body and (data := await self._near.body()):
            self._terms.hold(len(data))
            self._holding += len(data)
            held += data
            if len(held) > HELD_BODY_BYTES:
                raise Refusal(
                    f"a person is to be asked, and its body is longer than the {HELD_BODY_BYTES} "
                    "bytes that can be held meanwhile"
                )
        if self._near.trailers:
            raise Refusal("a person is to be asked, and would not see the trailers of its body")
        self._held = bytes(held)
        return self._held

    async def _next(self) -> bytes:
        if self._held is None:
            return await self._near.body()
        held, self._held = self._held, b""
        return held

    async def _send(self, far: Far) -> None:
        finder = self._terms.finder()
        while data := await self._next():
            self.count_out(data)
            if finder is not None:
                data = finder.feed(data)
                self._terms.require_nothing(finder, self._head)
            if data:
                await far.send(data)
        if finder is not None and (data := finder.end()):
            await far.send(data)
        self._terms.require_clean(self._near.trailers, self._head)
        await far.finish(self._near.trailers)

    def count_out(self, data: bytes) -> None:
        """Something of the program's has been read."""
        self._bytes_out += len(data)
        self._sent.update(data)

    def count_in(self, data: bytes) -> None:
        """Something of the server's has been read."""
        self._bytes_in += len(data)
        self._got.update(data)

    async def _bring(self, far: Far, scrubber: Scrubber | None) -> None:
        near = self._near
        answer = self._answer
        if answer is None:
            answer = self._answer = await far.answer()
        unpacker = self._terms.unpacker(answer)
        if scrubber is not None:
            answer = self._answer = self._terms.scrubbed(answer)
        if answer.status == _SWITCHING:
            self.switched = far, answer
            return
        self._has_responded = True
        await near.respond(answer, last=self._once)
        while True:
            data = far.ready()
            if data is None:
                # Whoever waits for this must not wait for what may never come.
                if scrubber is not None and (rest := scrubber.release()):
                    await near.send(rest)
                await near.flush()
                data = await far.body()
            if not data:
                break
            self.count_in(data)
            for piece in (data,) if unpacker is None else unpacker.feed(data):
                passed = piece if scrubber is None else scrubber.feed(piece)
                if passed:
                    await near.send(passed)
        if unpacker is not None:
            unpacker.end()
        if scrubber is not None and (data := scrubber.end()):
            await near.send(data)
        trailers = far.trailers
        if scrubber is not None and trailers:
            trailers = self._terms.scrubbed(ResponseHead(0, trailers)).headers
        await near.finish(trailers)

    async def _say_no(self, no: Refusal | Unreachable) -> bool:
        if self._has_responded:
            raise CutOff(f"the answer broke off: {no}")
        near, head = self._near, self._head
        answer, body = own_answer(no)
        # A body that nobody asked for stands in the way of the next request.
        last = self._once or isinstance(no, Malformed) or near.is_awaited
        if head.has_body and not last:
            last = not await self._drain()
        if self._answer is None:
            self._answer = answer
        self._has_responded = True
        await near.respond(answer, last=last)
        if head.method != b"HEAD":
            await near.send(body)
        await near.finish([])
        return not last

    async def _drain(self) -> bool:
        """Read what is left of a body and throw it away; False where it is too much."""
        left = self._terms.bounds.farewell_bytes
        try:
            async with asyncio.timeout(self._terms.bounds.farewell_s):
                while left > 0:
                    data = await self._near.body()
                    if not data:
                        return True
                    left -= len(data)
        except (Refusal, Unreachable, TimeoutError):
            return False
        return False


def own_answer(no: Refusal | Unreachable) -> tuple[ResponseHead, bytes]:
    """Return what a program is answered by us."""
    if isinstance(no, Malformed):
        status, reason, text = 400, b"Bad Request", no.reason
    elif isinstance(no, Misdirected):
        status, reason, text = 421, b"Misdirected Request", no.reason
    elif isinstance(no, Refusal):
        status, reason, text = 403, b"Forbidden", no.told
    else:
        status, reason, text = 502, b"Bad Gateway", str(no)
    body = f"cloister: {text}\n".encode("ascii", "backslashreplace")
    headers = [
        (b"content-type", b"text/plain; charset=us-ascii"),
        (b"content-length", b"%d" % len(body)),
    ]
    return ResponseHead(status, headers, reason), body
