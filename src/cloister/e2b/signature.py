"""Signed URLs of files: who has one may read or write that path, until it expires."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from dataclasses import dataclass

from starlette.requests import Request

from cloister.e2b.refusal import CallRefused


@dataclass(frozen=True, slots=True)
class Claim:
    """What a signed URL says."""

    path: str
    operation: str
    username: str
    signature: str
    expires_s: int | None

    def is_signed_with(self, token: str) -> bool:
        """Whether whoever made the URL had this token."""
        expires = "" if self.expires_s is None else f":{self.expires_s}"
        text = f"{self.path}:{self.operation}:{self.username}:{token}{expires}"
        digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
        right = "v1_" + base64.b64encode(digest).decode().rstrip("=")
        return hmac.compare_digest(right.encode(), self.signature.encode("utf-8", "replace"))

    def require_in_time(self) -> None:
        """Refuse one that has expired; clients know these very words."""
        if self.expires_s is not None and self.expires_s < time.time():
            raise CallRefused("unauthenticated", "signature is already expired")


def claim_in(request: Request) -> Claim | None:
    """Return what the request claims by a signature in its URL, if it has one."""
    signature = request.query_params.get("signature")
    if not signature:
        return None
    expiration = request.query_params.get("signature_expiration")
    if expiration is not None and not (expiration.isdecimal() and len(expiration) < 16):
        raise CallRefused("unauthenticated", "signature_expiration is no time in seconds")
    return Claim(
        path=request.query_params.get("path", ""),
        operation="write" if request.method == "POST" else "read",
        username=request.query_params.get("username", ""),
        signature=signature,
        expires_s=None if expiration is None else int(expiration),
    )
