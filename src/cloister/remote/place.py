"""Where the server is that CLOISTER_URL names, and the token that CLOISTER_TOKEN holds."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from cloister.errors import RequestError
from cloister.model import quote

URL, TOKEN = "CLOISTER_URL", "CLOISTER_TOKEN"


@dataclass(frozen=True, slots=True)
class Place:
    """A server: its host and port, or its unix socket."""

    host: str
    port: int
    is_tls: bool
    socket: str | None
    token: str | None = field(repr=False)

    @property
    def authority(self) -> str:
        """What it is called in requests."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.socket is not None else f"{host}:{self.port}"


def server_place() -> Place | None:
    """Return the server that sandboxes are to be on; None: they are here."""
    text = os.environ.get(URL)
    return parse_place(text, os.environ.get(TOKEN)) if text else None


def parse_place(text: str, token: str | None) -> Place:
    """Return the server of a URL: unix:PATH, http://HOST[:PORT] or https://HOST[:PORT]."""
    if text.startswith("unix:"):
        path = "/" + text.removeprefix("unix:").lstrip("/")
        return Place("localhost", 0, False, path, token or None)
    try:
        found = urlsplit(text)
        host, port = found.hostname, found.port
    except ValueError:
        host, port, found = None, None, urlsplit("")
    is_plain = found.path in ("", "/") and not found.query and found.username is None
    if found.scheme not in ("http", "https") or not host or not is_plain:
        raise RequestError(
            f"{URL} is {quote(text)}; write unix:PATH, http://HOST:PORT or https://HOST:PORT"
        )
    is_tls = found.scheme == "https"
    return Place(host, port or (443 if is_tls else 80), is_tls, None, token or None)
