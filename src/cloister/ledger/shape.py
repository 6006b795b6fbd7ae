"""How the fields of a payload become JSON and are read back: strictly, by their declared types."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from cloister.errors import RequestError
from cloister.ledger.text import (
    BadEntry,
    Text,
    Texts,
    decode_list,
    decode_text,
    encode_list,
    encode_text,
)
from cloister.model import quote

# Every number of an entry fits 64 bits, so that any language can read it back exactly.
_LEAST, _MOST = -(2**63), 2**64 - 1

Convert = Callable[[Any], Any]

_canonical = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
).encode


_in_order = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


def canonical(value: object) -> bytes:
    """Return the one form in bytes that a value has: sorted, no spaces, ASCII, one line."""
    return _canonical(value).encode("ascii")


def encode_payload(payload: object) -> str:
    """Return the fields of a payload in canonical form.

    They are put in order once for each kind and not for each entry; `canonical` would write the
    same, which the reader holds it to.
    """
    return _in_order(encode_fields(payload))


def encode_fields(payload: object) -> dict[str, Any]:
    """Return the fields of a payload as JSON holds them, sorted; those that are None are not."""
    encoded: dict[str, Any] = {}
    for name, encode, _, _ in _plan(type(payload)):
        value = getattr(payload, name)
        # First what nearly every field is: this runs for every field of every entry.
        if type(value) is str and encode is encode_text and len(value) < 512 and value.isascii():
            encoded[name] = value
        elif value is not None:
            encoded[name] = encode(value)
    return encoded


def decode_fields(kind: type[Any], value: object) -> Any:
    """Return the payload whose fields are these; one too many or too few is an error."""
    if not isinstance(value, dict):
        raise BadEntry(f"the payload is {quote(value)}")
    given = dict(value)
    decoded = {}
    for name, _, decode, is_needed in _plan(kind):
        if name in given:
            decoded[name] = decode(given.pop(name))
        elif is_needed:
            raise BadEntry(f"the payload has no field {quote(name)}")
    if given:
        raise BadEntry(f"the payload has the unknown field {quote(min(given))}")
    return kind(**decoded)


Plan = tuple[tuple[str, Convert, Convert, bool], ...]
_plans: dict[type[Any], Plan] = {}


def _plan(kind: type[Any]) -> Plan:
    plan = _plans.get(kind)
    if plan is None:
        plan = _plans[kind] = _make_plan(kind)
    return plan


def _make_plan(kind: type[Any]) -> Plan:
    if not is_dataclass(kind):
        raise RequestError(f"a payload is {quote(kind)}; write one of cloister.ledger")
    hints = get_type_hints(kind)
    plan = []
    for field in sorted(fields(kind), key=lambda field: field.name):
        encode, decode, may_be_none = _converters(hints[field.name])
        # Only what may be None is left out by a writer, and only that by a reader.
        if may_be_none and field.default is not None:
            raise TypeError(f"{kind.__name__}.{field.name} needs the default None")
        plan.append((field.name, encode, decode, not may_be_none))
    return tuple(plan)


def _converters(hint: Any) -> tuple[Convert, Convert, bool]:
    members = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    may_be_none = NoneType in members
    rest = frozenset(member for member in members if member is not NoneType)
    if rest == frozenset(get_args(Text)):
        return encode_text, decode_text, may_be_none
    if rest == frozenset(get_args(Texts)):
        return encode_list, decode_list, may_be_none
    (one,) = rest
    return *_single(one), may_be_none


def _single(hint: Any) -> tuple[Convert, Convert]:
    if hint is int:
        return _encode_integer, _decode_integer
    if hint is bool:
        return functools.partial(_one_of, RequestError, (False, True)), functools.partial(
            _one_of, BadEntry, (False, True)
        )
    if get_origin(hint) is Literal:
        allowed = get_args(hint)
        return functools.partial(_one_of, RequestError, allowed), functools.partial(
            _one_of, BadEntry, allowed
        )
    if isinstance(hint, type) and issubclass(hint, Enum):
        return functools.partial(_encode_member, hint), functools.partial(_decode_member, hint)
    if get_origin(hint) is tuple and is_dataclass(get_args(hint)[0]):
        return _encode_each, functools.partial(_decode_each, get_args(hint)[0])
    if is_dataclass(hint):
        return encode_fields, functools.partial(decode_fields, cast("type[Any]", hint))
    raise TypeError(f"no form for {hint}")


def _encode_each(values: Any) -> list[dict[str, Any]]:
    return [encode_fields(value) for value in values]


def _decode_each(kind: type[Any], values: Any) -> tuple[Any, ...]:
    if not isinstance(values, list):
        raise BadEntry(f"a list is {quote(values)}")
    return tuple(decode_fields(kind, value) for value in values)


def _encode_integer(value: Any) -> int:
    if type(value) is not int or not _LEAST <= value <= _MOST:
        raise RequestError(f"a number of an entry is {quote(value)}; write an integer of 64 bits")
    return value


def _decode_integer(value: Any) -> int:
    if type(value) is not int or not _LEAST <= value <= _MOST:
        raise BadEntry(f"a number is {quote(value)}")
    return value


def _one_of(
    error: type[RequestError] | type[BadEntry], allowed: tuple[Any, ...], value: Any
) -> Any:
    # By type too: 1 is equal to True.
    for one in allowed:
        if value == one and type(value) is type(one):
            return value
    raise error(f"a field is {quote(value)}; it may be {', '.join(map(str, allowed))}")


def _encode_member(kind: type[Enum], value: Any) -> Any:
    if type(value) is not kind:
        raise RequestError(f"a field is {quote(value)}; write a member of {kind.__name__}")
    return value._value_


def _decode_member(kind: type[Enum], value: Any) -> Enum:
    try:
        return kind(value)
    except ValueError as error:
        raise BadEntry(f"a field is {quote(value)}, which is no {kind.__name__}") from error
