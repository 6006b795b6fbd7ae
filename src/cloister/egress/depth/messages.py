"""A request and its answer as they are judged and passed on, whichever HTTP carried them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Headers = list[tuple[bytes, bytes]]

# Of one hop, or for a proxy: they mean nothing beyond the connection they came by.
_OF_ONE_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization"),
        *(b"proxy-authenticate", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
        *(b"http2-settings", b"expect"),
    )
)
# Who claims to have asked before us has not; no header of a guest's means anything to us. Some
# servers take the path or the host from one of these, which no rule has been asked about.
_OF_PROXIES = frozenset(
    (
        *(b"forwarded", b"via", b"x-real-ip", b"x-host", b"x-original-host", b"x-original-url"),
        *(b"x-original-uri", b"x-rewrite-url", b"x-http-host-override", b"x-override-url"),
    )
)
_OF_PROXIES_BEGIN = b"x-forwarded-"
# Of a body, whatever the request itself says of them.
_OF_BODIES = frozenset((b"content-length", b"content-type", b"content-encoding"))


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What is asked for; `headers` have lower-case names, and none of one hop, nor Host.

    `length` is that of the body where it was said; a body without one has `has_body` alone.
    """

    method: bytes
    target: bytes
    headers: Headers
    has_body: bool = False
    length: int | None = None
    upgrade: bytes | None = None

    @property
    def path(self) -> str:
        """The target as text; bytes that are none stay recognisable."""
        return self.target.decode("ascii", "backslashreplace")


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What came of it; `headers` as in a request."""

    status: int
    headers: Headers = field(default_factory=list)
    reason: bytes = b""


def passed_on(headers: Iterable[tuple[bytes, bytes]], *, of_request: bool) -> Headers:
    """Return the headers, names in lower case, that go beyond this hop."""
    found = [(bytes(name).lower(), bytes(value)) for name, value in headers]
    listed = _listed(found)
    dropped = _OF_ONE_HOP | listed | ({b"host"} if of_request else {b"alt-svc"})
    return [
        (name, value)
        for name, value in found
        if name not in dropped and not (of_request and _is_of_proxies(spelt(name)))
    ]


def spelt(name: bytes) -> bytes:
    """Return the name of a header as servers read it that know no difference between - and _."""
    return name.replace(b"_", b"-")


def _is_of_proxies(name: bytes) -> bool:
    return name in _OF_PROXIES or name.startswith(_OF_PROXIES_BEGIN)


def _listed(headers: Headers) -> frozenset[bytes]:
    """Return the headers that a message itself says are of one hop; never those of its body."""
    values = [value for name, value in headers if name == b"connection"]
    if not values:
        return frozenset()
    parts = b",".join(values).split(b",")
    return frozenset(part.strip().lower() for part in parts) - _OF_BODIES


def values_of(headers: Headers, name: bytes) -> list[bytes]:
    """Return all values of a header."""
    return [value for each, value in headers if each == name]


def without(headers: Headers, *names: bytes) -> Headers:
    """Return the headers but these."""
    return [(name, value) for name, value in headers if name not in names]
