"""A request as it is judged: where to, how, and which path."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cloister.errors import RequestError
from cloister.model import quote
from cloister.policy.destinations import Connect
from cloister.policy.paths import canonical_path

# RFC 9110, token; no method is long.
_METHOD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,40}")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A wish to send one request. `path` is its target as sent, with or without a query.

    The method is compared in upper case: a server may be that lenient. `canonical` is the one
    form of the path, None where it is ambiguous.
    """

    host: str
    port: int
    method: str
    path: str
    canonical: str | None = field(init=False, compare=False)

    def __post_init__(self) -> None:
        connect = Connect(self.host, self.port)
        object.__setattr__(self, "host", connect.host)
        object.__setattr__(self, "method", parse_method(self.method))
        if not isinstance(self.path, str):
            raise RequestError(f"path is {quote(self.path)}; write the target of the request")
        object.__setattr__(self, "canonical", canonical_path(self.path))

    @property
    def connect(self) -> Connect:
        """The connection it needs."""
        return Connect(self.host, self.port)


def parse_method(value: object) -> str:
    """Return a method in upper case."""
    if not isinstance(value, str) or _METHOD.fullmatch(value) is None:
        raise RequestError(f'method is {quote(value)}; write a method of HTTP, such as "GET"')
    return value.upper()
