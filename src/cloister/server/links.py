"""Links to one port of one sandbox that need no token: signed here, for a time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time

from cloister.errors import NotFound
from cloister.server.tenancy import TenantName

_MAC_BYTES = 32


class Links:
    """Signs links with a key of this server's life: all of them end with it."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def sign(self, tenant: TenantName, sandbox: str, port: int, lifetime_s: float) -> str:
        """Return a link; whoever has it reaches that port, and nothing else."""
        words = f"{tenant} {sandbox} {port} {int(time.time() + lifetime_s)}".encode()
        return base64.urlsafe_b64encode(self._mac(words) + words).decode().rstrip("=")

    def open(self, link: str) -> tuple[TenantName, str, int]:
        """Return the tenant, the sandbox and the port of a link that is valid now."""
        missing = NotFound("this link leads nowhere, or not any more", what="link")
        try:
            data = base64.urlsafe_b64decode(link + "=" * (-len(link) % 4))
        except ValueError:
            raise missing from None
        mac, words = data[:_MAC_BYTES], data[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(words)):
            raise missing
        tenant, sandbox, port, until = words.decode().split(" ")
        if time.time() >= int(until):
            raise missing
        return TenantName(tenant), sandbox, int(port)

    def _mac(self, words: bytes) -> bytes:
        return hmac.digest(self._key, words, hashlib.sha256)
