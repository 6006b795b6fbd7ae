"""Shapes of HTTP/1 that two readers read in two ways: looked for in what h11 has taken."""

from __future__ import annotations

import re

from cloister.egress.refusal import Malformed

_FOLDED = re.compile(rb"\n[ \t]+[^ \t\r\n]")
_LENGTHS = re.compile(rb"\n(?:content-length|transfer-encoding)[ \t]*:", re.IGNORECASE)
_HOSTS = re.compile(rb"\nhost[ \t]*:", re.IGNORECASE)


def require_plain(raw: bytes) -> None:
    """Refuse the head of a request, as it was sent, that is ambiguous.

    h11 reads these, in one way; a server behind might in another. They are written anew in any
    case, so this is the second of two walls: whoever sends them means no good.
    """
    if b"\n" in raw.replace(b"\r\n", b""):
        raise Malformed("a line of the request does not end as lines do")
    if _FOLDED.search(raw):
        raise Malformed("a header of the request is folded")
    if len(_LENGTHS.findall(raw)) > 1:
        raise Malformed("a request with two lengths")
    if len(_HOSTS.findall(raw)) > 1:
        raise Malformed("a request with two Host headers")
