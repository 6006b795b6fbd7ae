"""DSSE: what a signature is made over, so that one for a receipt is never one for a checkpoint."""

from __future__ import annotations


def signed_bytes(kind: str, body: bytes) -> bytes:
    """Return the bytes to sign for a body of that kind.

    https://github.com/secure-systems-lab/dsse/blob/master/protocol.md, PAE.
    """
    name = kind.encode()
    return b"DSSEv1 %d %b %d %b" % (len(name), name, len(body), body)
