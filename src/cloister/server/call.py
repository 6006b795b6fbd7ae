"""One request on its way: who makes it, what it says, and how its answer is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response

from cloister.errors import Exhausted, RequestError, ScopeMissing
from cloister.model import quote
from cloister.server.resident import Resident
from cloister.server.tokens import Caller

if TYPE_CHECKING:
    from cloister.server.fleet import Fleet

Struct = TypeVar("Struct")

_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class Call:
    """What an endpoint is given. Its caller's token has the scope of the endpoint."""

    request: HTTPConnection
    caller: Caller
    fleet: Fleet
    id: str

    def resident(self, id: str | None = None) -> Resident:
        """Return the live sandbox that the path names, if it is the caller's."""
        wanted = self.request.path_params["id"] if id is None else id
        self.require_sandbox(wanted)
        return self.fleet.find(self.caller.tenant, wanted)

    def require_sandbox(self, id: str) -> None:
        """Refuse a token that is for another sandbox."""
        if self.caller.sandbox is not None and self.caller.sandbox != id:
            raise ScopeMissing("this token is for another sandbox", scope=f"sandbox {id}")

    def require_any_sandbox(self) -> None:
        """Refuse a token that is for one sandbox alone."""
        self.caller.require_any_sandbox()

    def query(self, kind: type[Struct]) -> Struct:
        """Return the query as a type; what it does not have is refused."""
        return parse_query(self.request, kind)

    async def body(self, kind: type[Struct], at_least: int = 0) -> Struct:
        """Return the body as a type; what it does not have is refused.

        It may have as many bytes as the server's settings say, and `at_least` so many.
        """
        data = await self.read(max(self.fleet.settings.body_bytes, at_least))
        return parse_json(data, kind)

    async def read(self, limit: int) -> bytes:
        """Return the whole body, which must be no longer than `limit`."""
        self._require_fits(limit)
        whole = bytearray()
        try:
            # One clock for all parts: nearly always there is one, and it is there already.
            async with asyncio.timeout(self.fleet.settings.slow_client_s) as patience:
                async for part in self._stream():
                    whole += part
                    if len(whole) > limit:
                        raise _too_large(limit)
                    if part:
                        patience.reschedule(self._latest())
        except ClientDisconnect:
            raise _gone() from None
        except TimeoutError:
            raise _stopped() from None
        return bytes(whole)

    async def chunks(self, limit: int) -> AsyncGenerator[bytes, None]:
        """Yield the body as it comes; a client that stops sending is not waited for."""
        self._require_fits(limit)
        stream = self._stream()
        size = 0
        while True:
            try:
                async with asyncio.timeout(self.fleet.settings.slow_client_s):
                    part = await anext(stream, None)
            except ClientDisconnect:
                raise _gone() from None
            except TimeoutError:
                raise _stopped() from None
            if part is None:
                return
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            if part:
                yield part

    def _stream(self) -> AsyncGenerator[bytes, None]:
        if not isinstance(self.request, Request):
            raise RequestError("this connection has no body")
        return self.request.stream()

    def _require_fits(self, limit: int) -> None:
        length = self.request.headers.get("content-length")
        if length is not None and length.isdecimal() and int(length) > limit:
            raise _too_large(limit)

    def _latest(self) -> float:
        return asyncio.get_running_loop().time() + self.fleet.settings.slow_client_s


def parse_json(data: bytes, kind: type[Struct]) -> Struct:
    """Return JSON as a type; what it does not have is refused."""
    if not data:
        data = b"{}"
    try:
        parsed = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is not what is expected: {error}") from None
    _require_shallow(msgspec.to_builtins(parsed) if isinstance(parsed, msgspec.Struct) else parsed)
    return parsed


def parse_query(request: HTTPConnection, kind: type[Struct]) -> Struct:
    """Return the query of a URL as a type; what it does not have is refused."""
    given: dict[str, Any] = {}
    for key, value in request.query_params.multi_items():
        if key in given:
            raise RequestError(f"the query has {quote(key)} twice")
        given[key] = value
    try:
        return msgspec.convert(given, type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(f"the query is not what is expected: {error}") from None


def _require_shallow(value: Any, depth: int = 0) -> None:
    if depth > _DEEPEST:
        raise RequestError(f"the body is nested deeper than {_DEEPEST}")
    if isinstance(value, dict):
        for each in value.values():
            _require_shallow(each, depth + 1)
    elif isinstance(value, list):
        for each in value:
            _require_shallow(each, depth + 1)


def _gone() -> RequestError:
    return RequestError("the client went away while it was sending")


def _stopped() -> Exhausted:
    return Exhausted("the client stopped sending in the middle", limit="wait")


def _too_large(limit: int) -> Exhausted:
    return Exhausted(f"the body is larger than {limit} bytes", limit="body")


def _plain(value: Any) -> Any:
    # A text that knows more than its characters is written as those.
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


_encoder = msgspec.json.Encoder(enc_hook=_plain)


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a value as JSON."""
    if value is None:
        return Response(status_code=204, headers=headers)
    return Response(_encoder.encode(value), status, headers, media_type="application/json")
