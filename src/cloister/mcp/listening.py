"""Where to listen and for which token: read before anything that takes long to import."""

from __future__ import annotations

from dataclasses import dataclass

from cloister.errors import RequestError
from cloister.model import quote

MINIMUM_TOKEN_CHARACTERS = 16
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int


def parse_listen(text: str) -> Address:
    """Return the address that `--listen` names: of this machine, since nothing is encrypted."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal() or not port.isascii() or int(port) > 65_535:
        raise RequestError(f"--listen is {quote(text)}; write 127.0.0.1:PORT")
    if host not in _LOOPBACK:
        raise RequestError(
            f"--listen is {quote(text)}; only this machine's own addresses are served, "
            "127.0.0.1 or [::1], so put a proxy with TLS before it to be reached from elsewhere"
        )
    return Address(host, int(port))


def parse_token(text: str, source: str) -> str:
    """Return a token that is worth asking for."""
    token = text.strip()
    if len(token) < MINIMUM_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable():
        raise RequestError(
            f"the token in {source} has {len(token)} characters; write at least "
            f"{MINIMUM_TOKEN_CHARACTERS} printable ones, such as `openssl rand -hex 32` makes"
        )
    return token
