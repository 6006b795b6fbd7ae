"""Links to one port of one sandbox that need no token: signed here, for a time, for a token."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass

from cloister.errors import NotFound
from cloister.server.tenancy import TenantName
from cloister.server.tokens import Tokens

_MAC_BYTES = 32


@dataclass(frozen=True, slots=True)
class Place:
    """Where a link leads, and the token it was made with, which it ends with."""

    tenant: TenantName
    sandbox: str
    port: int
    token: str


class Links:
    """Signs links with a key of this server's life: all of them end with it."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def sign(self, place: Place, lifetime_s: float) -> str:
        """Return a link; whoever has it reaches that port, and nothing else."""
        until = int(time.time() + lifetime_s)
        words = f"{place.tenant} {place.sandbox} {place.port} {place.token} {until}".encode()
        return base64.urlsafe_b64encode(self._mac(words) + words).decode().rstrip("=")

    async def open(self, link: str, tokens: Tokens) -> Place:
        """Return where a link leads that is valid now, and whose token is."""
        missing = NotFound("this link leads nowhere, or not any more", what="link")
        try:
            data = base64.urlsafe_b64decode(link + "=" * (-len(link) % 4))
        except ValueError:
            raise missing from None
        mac, words = data[:_MAC_BYTES], data[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(words)):
            raise missing
        tenant, sandbox, port, token, until = words.decode().split(" ")
        if time.time() >= int(until) or not await tokens.is_valid(token):
            raise missing
        return Place(TenantName(tenant), sandbox, int(port), token)

    def _mac(self, words: bytes) -> bytes:
        return hmac.digest(self._key, words, hashlib.sha256)
