"""W3C trace context: what ties a sandbox's entries to the caller's own traces."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from cloister.errors import RequestError
from cloister.model import quote

# https://www.w3.org/TR/trace-context/#traceparent-header; version ff is forbidden, and later
# versions may add fields after the ones of version 00.
_TRACEPARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)


@dataclass(frozen=True, slots=True)
class Trace:
    """Where in a caller's trace something happens: the trace, the span above, and its flags."""

    trace_id: str
    span_id: str
    flags: int = 0

    def __post_init__(self) -> None:
        if _TRACEPARENT.fullmatch(str(self)) is None:
            raise RequestError(
                f"trace is {quote(str(self))}; ids are 32 and 16 of 0-9 and a-f, not all 0"
            )

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    def below(self) -> Trace:
        """Return the same trace with a new span, for what is passed on as TRACEPARENT."""
        return Trace(self.trace_id, secrets.token_hex(8), self.flags)


def parse_trace(value: object) -> Trace:
    """Return the trace of a `traceparent` header or TRACEPARENT variable."""
    found = _TRACEPARENT.fullmatch(value) if isinstance(value, str) and len(value) < 512 else None
    if found is None or (found[1] == "00" and found[5] is not None):
        raise RequestError(
            f"traceparent is {quote(value)}; write it as 00-<32 hex digits>-<16 hex digits>-01"
        )
    return Trace(found[2], found[3], int(found[4], 16) & 1)
