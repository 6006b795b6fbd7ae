"""Errors as clients read them: problem+json (RFC 9457) from the one tree of errors."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from starlette.responses import Response

from cloister.errors import (
    AlreadyExists,
    Busy,
    CloisterError,
    Denied,
    Exhausted,
    FileError,
    GuestError,
    GuestGone,
    HostError,
    NotFound,
    ProcessFailed,
    RequestError,
    ScopeMissing,
    TokenRefused,
    Unsupported,
)
from cloister.node.control_channel import describe_error
from cloister.server.discretion import as_told

log = logging.getLogger("cloister.server")

# The nearest of an error's classes decides.
_STATUSES: dict[type[CloisterError], int] = {
    TokenRefused: 401,
    ScopeMissing: 403,
    Denied: 403,
    NotFound: 404,
    AlreadyExists: 409,
    Busy: 409,
    Unsupported: 501,
    RequestError: 400,
    GuestGone: 410,
    FileError: 422,
    ProcessFailed: 422,
    GuestError: 502,
    HostError: 500,
}
# Whose limit it was decides: the tenant's, that of one answer, or that of the sandbox.
_LIMIT_STATUSES = {
    "wait": 408,
    "body": 413,
    "output": 413,
    "disk": 507,
    "inodes": 507,
    "memory": 507,
}
# Every status that an error can have; a limit of the sandbox's own ends it, which is 410.
STATUSES = tuple(sorted({*_STATUSES.values(), *_LIMIT_STATUSES.values(), 429}))
_TENANT_LIMITS = ("sandboxes", "requests", "queue", "cpus", "pids")


class Problem(msgspec.Struct, omit_defaults=True):
    """What an error answers with; `error` is its class in `cloister.errors`."""

    title: str
    status: int
    detail: str
    error: str
    request: str
    details: dict[str, Any] = {}
    type: str = "about:blank"


def status_of(error: BaseException) -> int:
    """Return the status code of an error."""
    if isinstance(error, Exhausted):
        return 429 if error.limit in _TENANT_LIMITS else _LIMIT_STATUSES.get(error.limit, 410)
    for kind in type(error).__mro__:
        if kind in _STATUSES:
            return _STATUSES[kind]
    return 500


def problem_of(error: BaseException, request: str) -> Problem:
    """Return an error as a problem; of what is not ours to tell, only its number is told."""
    if not isinstance(error, CloisterError):
        log.error("a request failed", extra={"request": request}, exc_info=error)
        said = f"the server failed; its log has the reason under {request}"
        return Problem(_TITLES[500], 500, said, "HostError", request)
    status = status_of(error)
    told = as_told(error, request)
    if told is error and type(error) is HostError:
        log.error("a request failed", extra={"request": request}, exc_info=error)
    described = describe_error(told)
    details = {**described["details"], "message": told.message}
    if isinstance(error.__cause__, OSError) and error.__cause__.errno is not None:
        details["kernel_errno"] = error.__cause__.errno
    return Problem(
        title=_TITLES.get(status, "error"),
        status=status,
        detail=_text(str(told)),
        error=described["kind"],
        request=request,
        details={
            name: _text(value) if isinstance(value, str) else value
            for name, value in details.items()
        },
    )


def _text(words: str) -> str:
    # A path may have bytes that are no text, and JSON has no word for those.
    return words.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def problem_response(error: BaseException, request: str) -> Response:
    """Return an error as a response."""
    problem = problem_of(error, request)
    headers = {"x-request-id": request}
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    if problem.status in (408, 413):
        # The rest of the body may still come, and nobody will read it.
        headers["connection"] = "close"
    if problem.status == 429:
        headers["retry-after"] = "1"
    return Response(
        msgspec.json.encode(problem),
        problem.status,
        headers,
        media_type="application/problem+json",
    )


_TITLES = {
    400: "the request is wrong",
    401: "no valid token",
    403: "not allowed",
    404: "not found",
    405: "no such method",
    408: "too slow",
    409: "in the way of something else",
    410: "gone",
    412: "it has changed",
    413: "too large",
    421: "not a name of this server",
    422: "it was refused inside",
    429: "too much at once",
    431: "too many headers",
    500: "the server failed",
    501: "not supported here",
    502: "the sandbox misbehaved",
    503: "not now",
    507: "no room inside",
}
