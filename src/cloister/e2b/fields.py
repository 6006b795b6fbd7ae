"""Reads fields of proto3 JSON: absent means the default, and another type is an error."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from cloister.e2b.refusal import CallRefused
from cloister.model import quote

_MAXIMUM_INTEGER = 2**63 - 1


def text(values: Mapping[str, Any], name: str, default: str = "") -> str:
    """Return a field of text."""
    value = values.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise _wrong(name, value, "text")
    return value


def flag(values: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """Return a field that is true or false."""
    value = values.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    return value


def optional_flag(values: Mapping[str, Any], name: str) -> bool | None:
    """Return a field that is true, false or absent."""
    return None if values.get(name) is None else flag(values, name)


def integer(values: Mapping[str, Any], name: str, default: int = 0) -> int:
    """Return a whole number; proto3 JSON may write one as text."""
    value = values.get(name)
    if value is None:
        return default
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) <= 20:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _MAXIMUM_INTEGER:
        raise _wrong(name, value, "a whole number")
    return value


def table(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a field that is an object; absent is an empty one."""
    value = values.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(name, value, "an object")
    return value


def texts(values: Mapping[str, Any], name: str) -> list[str]:
    """Return a list of text."""
    value = values.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _wrong(name, value, "a list of text")
    return value


def text_table(values: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return an object whose values are text."""
    value = table(values, name)
    if not all(isinstance(each, str) for each in value.values()):
        raise _wrong(name, value, "an object of text")
    return value


def content(values: Mapping[str, Any], name: str) -> bytes:
    """Return bytes, which proto3 JSON writes in base64 of either alphabet."""
    value = text(values, name)
    try:
        return base64.b64decode(value.replace("-", "+").replace("_", "/") + "==", validate=False)
    except (binascii.Error, ValueError):
        raise _wrong(name, value, "base64") from None


def _wrong(name: str, value: object, wanted: str) -> CallRefused:
    return CallRefused("invalid_argument", f"{name} is {quote(value)}; write {wanted}")
