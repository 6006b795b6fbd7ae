"""Requests to a registry: encrypted unless it is on this machine, bounded, tried again."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

from cloister.errors import HostError, ImageRefused
from cloister.image.reference import is_loopback
from cloister.model import quote

_TIMEOUT_S = 60.0
_ATTEMPTS = 5
_FIRST_PAUSE_S = 0.5
# A registry may ask for a longer pause; nobody waits longer than this for one.
_LONGEST_PAUSE_S = 20.0
_TRY_AGAIN = (429, 500, 502, 503, 504)
_REDIRECTS = (301, 302, 303, 307, 308)
_MAXIMUM_REDIRECTS = 5

Response = http.client.HTTPResponse
TROUBLE = (OSError, http.client.HTTPException)


@contextmanager
def request(
    url: str,
    headers: Mapping[str, str],
    *,
    stopping: threading.Event,
    body: bytes | None = None,
) -> Iterator[Response]:
    """Ask, follow where it leads, and try again where that may help; yields any other answer.

    A header of authorization is not sent on to another host.
    """
    origin = _origin(url)
    may_be_plain = is_loopback(urllib.parse.urlsplit(url).hostname or "")
    for _ in range(_MAXIMUM_REDIRECTS + 1):
        require_safe(url, may_be_plain=may_be_plain)
        sent = dict(headers)
        if _origin(url) != origin:
            sent.pop("Authorization", None)
        response = _persistent(url, sent, stopping, body)
        with contextlib.closing(response):
            if response.status not in _REDIRECTS:
                yield response
                return
            location = response.headers.get("Location")
            if not location:
                raise ImageRefused(f"{origin[1]} sends us on without saying where to")
            url = urllib.parse.urljoin(url, location)
    raise ImageRefused(f"{origin[1]} sends us on more than {_MAXIMUM_REDIRECTS} times")


def require_safe(url: str, *, may_be_plain: bool) -> None:
    """Refuse what others could read or change on its way."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https":
        return
    if parts.scheme == "http" and may_be_plain and is_loopback(parts.hostname or ""):
        return
    raise ImageRefused(
        f"the way to the image leads to {quote(url)}, which is not encrypted; "
        "plain http is for registries on this machine only"
    )


def _persistent(
    url: str, headers: Mapping[str, str], stopping: threading.Event, body: bytes | None
) -> Response:
    pause_s = _FIRST_PAUSE_S
    trouble = ""
    for attempt in range(_ATTEMPTS):
        if attempt and stopping.wait(pause_s):
            break
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        try:
            response = _open(url, headers, body)
        except TROUBLE as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise HostError(
                    f"{_origin(url)[1]} cannot prove who it is: {reason.verify_message}"
                ) from error
            if isinstance(reason, socket.gaierror) and reason.errno == socket.EAI_NONAME:
                raise HostError(
                    f"nobody here knows a host {_origin(url)[1]}; check the name of the image, or "
                    "how this machine asks for names"
                ) from error
            trouble = str(reason) or type(reason).__name__
            continue
        if response.status not in _TRY_AGAIN:
            return response
        trouble = f"it answers {response.status}"
        pause_s = _asked_pause_s(response, pause_s)
        response.close()
    raise HostError(f"{_origin(url)[1]} does not answer: {trouble}; try again later")


def _asked_pause_s(response: Response, otherwise_s: float) -> float:
    asked = response.headers.get("Retry-After", "")
    if asked.isascii() and asked.isdecimal() and len(asked) < 10:
        return min(float(asked), _LONGEST_PAUSE_S)
    return otherwise_s


def _open(url: str, headers: Mapping[str, str], body: bytes | None) -> Response:
    asked = urllib.request.Request(url, body, dict(headers))  # noqa: S310
    host = urllib.parse.urlsplit(url).hostname or ""
    response = _opener(is_loopback(host)).open(asked, timeout=_TIMEOUT_S)
    if not isinstance(response, Response):
        raise HostError(f"{host} was not asked over http")
    return response


@cache
def _opener(direct: bool) -> urllib.request.OpenerDirector:
    """Two schemes and the person's proxy; no redirects, no other schemes, no errors of its own."""
    opener = urllib.request.OpenerDirector()
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
    ]
    if not direct:
        handlers.append(urllib.request.ProxyHandler())
    for handler in handlers:
        opener.add_handler(handler)
    return opener


def _origin(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc
