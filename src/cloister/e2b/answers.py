"""Answers of the REST side: JSON bodies, and errors as `{"code", "message"}` with equal numbers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from cloister.e2b.refusal import CallRefused, refusal_of
from cloister.errors import CloisterError

Endpoint = Callable[[Request], Awaitable[Response]]

# What a request that is no upload may weigh.
MAXIMUM_BODY_BYTES = 4 * 2**20
# How long a client may say nothing in the middle of a request.
PATIENCE_S = 30.0


def json_answer(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON body."""
    return Response(
        json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"),
        status,
        headers,
        "application/json",
    )


def empty_answer(status: int = 204) -> Response:
    """Return an answer without a body."""
    return Response(status_code=status)


def error_answer(status: int, message: str, **further: object) -> Response:
    """Return an error as both SDKs read it: the number in the body is the status."""
    # A repeat of what has been done already is never asked for by a client on its own.
    headers = {"should-retry": "false"} if status >= 500 else None
    return json_answer({"code": status, "message": message, **further}, status, headers)


def answering(endpoint: Endpoint) -> Endpoint:
    """Let an endpoint raise: its errors become answers."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientDisconnect:
            return empty_answer(499)
        except CloisterError as error:
            refused = refusal_of(error)
            return error_answer(refused.status, refused.message)

    return answer


async def patiently(request: Request, limit: int | None = None) -> AsyncIterator[bytes]:
    """Yield a body as it comes; one who stops sending, or sends too much, is not waited for."""
    size = 0
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(PATIENCE_S):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise CallRefused(
                "deadline_exceeded", f"nothing came for {PATIENCE_S:g} s; send without pauses", 408
            ) from None
        if chunk is None:
            return
        size += len(chunk)
        if limit is not None and size > limit:
            raise CallRefused(
                "resource_exhausted", f"the body is larger than {limit} bytes; send less", 413
            )
        if chunk:
            yield chunk


async def read_body(request: Request, limit: int = MAXIMUM_BODY_BYTES) -> bytes:
    """Return a whole body, which may come without a length, and is refused before it is large."""
    return b"".join([chunk async for chunk in patiently(request, limit)])


async def read_json(request: Request) -> dict[str, Any]:
    """Return the JSON object of a body; no body is an empty object."""
    return parse_object(await read_body(request))


def parse_object(body: bytes) -> dict[str, Any]:
    """Return a JSON object from bytes."""
    if not body.strip():
        return {}
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise CallRefused("invalid_argument", "the body is not JSON; send an object") from None
    if not isinstance(value, dict):
        raise CallRefused("invalid_argument", "the body is not an object; send one")
    return value
