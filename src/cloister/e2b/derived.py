"""Tokens for one thing that are made from a key of a tenant's, and end with that key."""

from __future__ import annotations

import hashlib
import hmac

from cloister.server.tokens import Tokens

ACCESS, TRAFFIC, UPLOAD = "access", "traffic", "upload"
VOLUME, VOLUME_READ = "volume", "volume-read"


class Derived:
    """Makes them and knows them again; they are kept nowhere."""

    def __init__(self, secret: bytes, tokens: Tokens) -> None:
        self._secret = secret
        self._tokens = tokens

    def make(self, of: str, what: str, purpose: str) -> str:
        """Return what opens one thing for one purpose, told to whoever came with the key `of`."""
        text = f"{purpose}:{of}:{what}".encode()
        return f"{of}.{hmac.digest(self._secret, text, hashlib.sha256).hex()}"

    async def key_of(self, text: str | None, what: str, purpose: str) -> str | None:
        """Return the key that a token was made from, if it opens this and the key still does."""
        of = "" if text is None else text.partition(".")[0]
        right = self.make(of, what, purpose).encode()
        if text is None or not hmac.compare_digest(text.encode("utf-8", "replace"), right):
            return None
        return of if await self.opens(of) else None

    async def opens(self, of: str) -> bool:
        """Whether a key from which something was made is still valid."""
        return await self._tokens.is_valid(of)
