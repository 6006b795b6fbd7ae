"""One line of the record: what happened, when, in which sandbox, and the hash of the one before."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, ClassVar

from cloister.errors import RequestError
from cloister.ledger import calls, crossings, decisions, keeping, lifecycle, work
from cloister.ledger.payload import Payload
from cloister.ledger.shape import canonical, decode_fields, encode_payload
from cloister.ledger.text import BadEntry
from cloister.ledger.trace import Trace, parse_trace
from cloister.model import quote

# What the entry before the first one would have hashed to.
NOTHING = "0" * 64
# Every field is capped, so a writer stays below this; a reader takes nothing longer.
MAXIMUM_LINE_BYTES = 1024 * 1024

_HEAD, _MIDDLE, _TAIL = b'{"entry":', b',"hash":"', b'"}\n'
_HASH_DIGITS = 64
_FIELDS = {"before", "kind", "monotonic_ns", "payload", "sandbox", "sequence", "time_ns"}
_OPTIONAL = {"span", "trace"}


@dataclass(frozen=True, slots=True)
class Unknown(Payload):
    """A kind that a later release writes; it is kept as it is."""

    kind: ClassVar[str] = ""
    name: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line, read back. Begin and end of one thing have the same `span`: the begin's number."""

    sequence: int
    time_ns: int
    monotonic_ns: int
    sandbox: str
    before: str
    hash: str
    payload: Payload
    span: int | None = None
    trace: Trace | None = None

    @property
    def kind(self) -> str:
        """The name of the kind, such as "process.started"."""
        payload = self.payload
        return payload.name if isinstance(payload, Unknown) else payload.kind


def _payloads() -> dict[str, type[Payload]]:
    found: dict[str, type[Payload]] = {}
    for room in (lifecycle, work, crossings, decisions, keeping, calls):
        for member in vars(room).values():
            if isinstance(member, type) and issubclass(member, Payload) and member is not Payload:
                found[member.kind] = member
    return found


KINDS = _payloads()


def encode_line(
    payload: Payload,
    *,
    sequence: int,
    time_ns: int,
    monotonic_ns: int,
    sandbox: str,
    before: str,
    span: int | None = None,
    trace: Trace | None = None,
) -> tuple[bytes, str]:
    """Return the bytes of an entry and its hash.

    The frame is written by hand because it has one form only and this is done for every entry;
    `decode_line` refuses whatever `canonical` would have written differently.
    """
    kind = KINDS.get(payload.kind)
    if kind is not type(payload):
        raise RequestError(f"no such kind of entry: {quote(payload.kind)}")
    spanned = "" if span is None else f'"span":{span},'
    traced = "" if trace is None else f',"trace":"{trace}"'
    fields = encode_payload(payload)
    body = (
        f'{{"before":"{before}","kind":"{payload.kind}","monotonic_ns":{monotonic_ns},'
        f'"payload":{fields},"sandbox":"{sandbox}","sequence":{sequence},{spanned}'
        f'"time_ns":{time_ns}{traced}}}'
    ).encode("ascii")
    digest = hashlib.sha256(body).hexdigest()
    return b"".join((_HEAD, body, _MIDDLE, digest.encode("ascii"), _TAIL)), digest


def decode_line(line: bytes) -> Entry:
    """Return the entry of a line with its line feed, or raise BadEntry.

    The hash is recomputed and the form compared: a line that is accepted is, byte for byte, the
    one that a writer made of these values.
    """
    body, digest = split_line(line)
    if hashlib.sha256(body).hexdigest() != digest:
        raise BadEntry("the entry is not what its hash says; it was changed")
    try:
        value = json.loads(body)
        form = canonical(value)
    except (ValueError, RecursionError) as error:
        raise BadEntry("the line is not JSON") from error
    if form != body:
        raise BadEntry("the line is not in canonical form")
    return _decode(value, digest)


def split_line(line: bytes) -> tuple[bytes, str]:
    """Return the bytes that are hashed, and the hash beside them."""
    end = len(line) - len(_TAIL) - _HASH_DIGITS
    start = end - len(_MIDDLE)
    if (
        start < len(_HEAD)
        or not line.startswith(_HEAD)
        or not line.endswith(_TAIL)
        or line[start:end] != _MIDDLE
    ):
        raise BadEntry("the line has not the form of an entry")
    try:
        return line[len(_HEAD) : start], line[end : end + _HASH_DIGITS].decode("ascii")
    except UnicodeDecodeError as error:
        raise BadEntry("the hash of the line is not ASCII") from error


def _decode(value: Any, digest: str) -> Entry:
    if not isinstance(value, dict) or not _FIELDS <= value.keys() <= _FIELDS | _OPTIONAL:
        raise BadEntry("the entry has not the fields of one")
    for name in ("sequence", "time_ns", "monotonic_ns", "span"):
        number = value.get(name, 0)
        if type(number) is not int or not 0 <= number < 2**64:
            raise BadEntry(f"{name} is {quote(number)}")
    for name in ("before", "kind", "sandbox"):
        if not isinstance(value[name], str):
            raise BadEntry(f"{name} is {quote(value[name])}")
    return Entry(
        sequence=value["sequence"],
        time_ns=value["time_ns"],
        monotonic_ns=value["monotonic_ns"],
        sandbox=value["sandbox"],
        before=value["before"],
        hash=digest,
        payload=_decode_payload(value["kind"], value["payload"]),
        span=value.get("span"),
        trace=_decode_trace(value),
    )


def _decode_payload(name: str, value: Any) -> Payload:
    kind = KINDS.get(name)
    if kind is not None:
        payload: Payload = decode_fields(kind, value)
        return payload
    if not isinstance(value, dict):
        raise BadEntry(f"the payload is {quote(value)}")
    return Unknown(name, value)


def _decode_trace(value: dict[str, Any]) -> Trace | None:
    if "trace" not in value:
        return None
    try:
        return parse_trace(value["trace"])
    except RequestError as error:
        raise BadEntry(str(error)) from error
