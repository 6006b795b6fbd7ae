"""The plainest requests and answers as bytes; whatever is not that plain is left to h11."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

END_OF_HEAD = b"\r\n\r\n"

_WORD = re.compile(r"[\x21-\x7e]+")
_VALUE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?")
_STATUS = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2})(?: [\t\x20-\x7e]*)?")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[\t ]*([\t\x20-\x7e]*)")
_LENGTH = re.compile(r"[0-9]{1,18}")
_WITHOUT_BODY = frozenset((204, 304))


@dataclass(frozen=True, slots=True)
class PlainHead:
    """The head of an answer whose body has a known length."""

    status: int
    headers: dict[str, str]
    body_bytes: int
    # The server closes the connection after it.
    is_last: bool


def plain_request(
    method: str, target: str, headers: Mapping[str, str], body: bytes | None
) -> bytes | None:
    """Return a whole request as bytes, or None where anything about it is unusual."""
    if not method.isalpha() or method in ("HEAD", "CONNECT") or not _WORD.fullmatch(target):
        return None
    lines = [f"{method} {target} HTTP/1.1"]
    for name, value in headers.items():
        # Names are this room's own; a value may be somebody's token.
        if _VALUE.fullmatch(value) is None:
            return None
        lines.append(f"{name}: {value}")
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode("ascii") + END_OF_HEAD + (body or b"")


def parse_plain_head(head: bytes) -> PlainHead | None:
    """Return the head of an answer without its last empty line, or None if it is not plain."""
    first, *lines = head.split(b"\r\n")
    found = _STATUS.fullmatch(first)
    if found is None:
        return None
    status = int(found[1])
    headers: dict[str, str] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            return None
        name = field[1].decode("ascii").lower()
        if name in headers:
            return None
        headers[name] = field[2].decode("ascii").rstrip()
    if "transfer-encoding" in headers:
        return None
    length = headers.get("content-length", "0" if status in _WITHOUT_BODY else "")
    if _LENGTH.fullmatch(length) is None:
        return None
    body_bytes = 0 if status in _WITHOUT_BODY else int(length)
    # Whatever it says there besides keep-alive, this connection is used no more.
    is_last = headers.get("connection", "keep-alive").lower() != "keep-alive"
    return PlainHead(status, headers, body_bytes, is_last)
