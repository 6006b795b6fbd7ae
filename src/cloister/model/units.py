"""Read and write sizes, durations and cpu counts the way people write them."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from cloister.errors import RequestError
from cloister.model.quote import quote

UNLIMITED = "unlimited"

MAXIMUM_BYTES = 2**63 - 1
# Deadlines are kept in nanoseconds in a signed 64-bit integer on both sides of the wire.
MAXIMUM_SECONDS = (2**63 - 1) // 10**9
MAXIMUM_CPUS = 4096

# Longer text is no number; refusing it first keeps the exact arithmetic below cheap.
_MAXIMUM_CHARACTERS = 64
# Texts that were read, each no longer than that; what is refused is not remembered.
_MOST_KNOWN = 256

_BINARY_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
_BYTE_UNITS = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "PB": 10**15,
    **_BINARY_UNITS,
}
# From long to short: a duration names each at most once, in this order.
_SECOND_UNITS = {
    "d": Fraction(86_400),
    "h": Fraction(3_600),
    "m": Fraction(60),
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
}

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|us|d|h|m|s)")


def parse_bytes(value: object, field: str = "size") -> int:
    """Return a positive number of bytes from 1073741824, "1GiB", "1.5 GiB" or "10MB"."""
    # The same few texts are read for every sandbox, and exact arithmetic is slow.
    parse = _known_bytes if isinstance(value, str) else _parse_bytes
    return parse(value, field)


def _parse_bytes(value: object, field: str) -> int:
    wanted = 'write a whole number of bytes or a size such as "512MiB" or "10MB"'
    if isinstance(value, int) and not isinstance(value, bool):
        count = Fraction(value)
    elif isinstance(value, str):
        found = _SIZE.fullmatch(value) if len(value) <= _MAXIMUM_CHARACTERS else None
        if found is None:
            raise RequestError(f"{field} is {quote(value)}; {wanted}")
        number, unit = found.groups()
        if unit not in _BYTE_UNITS:
            raise RequestError(
                f"{field} is {quote(value)}, which has an unknown unit; the units are "
                "B, kB, MB, GB, TB, PB (powers of 1000) and KiB, MiB, GiB, TiB, PiB (of 1024)"
            )
        count = Fraction(number) * _BYTE_UNITS[unit]
    else:
        raise RequestError(f"{field} is {quote(value)}; {wanted}")
    if count <= 0:
        raise RequestError(f"{field} is {quote(value)}; it must be more than zero")
    if count > MAXIMUM_BYTES:
        raise RequestError(f"{field} is {quote(value)}; the most is {MAXIMUM_BYTES} bytes")
    if count.denominator != 1:
        raise RequestError(f"{field} is {quote(value)}, not a whole number of bytes; {wanted}")
    return int(count)


_known_bytes = lru_cache(_MOST_KNOWN)(_parse_bytes)


def parse_duration(value: object, field: str = "duration") -> float:
    """Return a positive number of seconds from 60, 0.25, "60s", "1h30m" or "250ms"."""
    parse = _known_duration if isinstance(value, str) else _parse_duration
    return parse(value, field)


def _parse_duration(value: object, field: str) -> float:
    wanted = 'write seconds as a number or a duration such as "60s", "1h30m" or "250ms"'
    if isinstance(value, str):
        seconds = _parse_duration_text(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = Fraction(value) if math.isfinite(_safe_float(value)) else None
    else:
        seconds = None
    if seconds is None:
        raise RequestError(f"{field} is {quote(value)}; {wanted}")
    if seconds <= 0:
        raise RequestError(f"{field} is {quote(value)}; it must be more than zero")
    if seconds > MAXIMUM_SECONDS:
        raise RequestError(f"{field} is {quote(value)}; the most is {MAXIMUM_SECONDS} seconds")
    return float(seconds)


_known_duration = lru_cache(_MOST_KNOWN)(_parse_duration)


def _parse_duration_text(text: str) -> Fraction | None:
    if len(text) > _MAXIMUM_CHARACTERS:
        return None
    if _NUMBER.fullmatch(text):
        return Fraction(text)
    total = Fraction(0)
    remaining = list(_SECOND_UNITS)
    position = 0
    while position < len(text):
        part = _DURATION_PART.match(text, position)
        if part is None or part[2] not in remaining:
            return None
        remaining = remaining[remaining.index(part[2]) + 1 :]
        total += Fraction(part[1]) * _SECOND_UNITS[part[2]]
        position = part.end()
    return total if position else None


def parse_cpus(value: object, field: str = "cpus") -> float:
    """Return a positive number of cpus from 1, 2.5 or "0.5"."""
    wanted = "write a number of cpus such as 1 or 0.5"
    if isinstance(value, str):
        fits = len(value) <= _MAXIMUM_CHARACTERS and _NUMBER.fullmatch(value)
        cpus = float(value) if fits else None
    elif isinstance(value, int | float) and not isinstance(value, bool):
        cpus = _safe_float(value)
    else:
        cpus = None
    if cpus is None or not math.isfinite(cpus):
        raise RequestError(f"{field} is {quote(value)}; {wanted}")
    if cpus <= 0:
        raise RequestError(f"{field} is {quote(value)}; it must be more than zero")
    if cpus > MAXIMUM_CPUS:
        raise RequestError(f"{field} is {quote(value)}; the most is {MAXIMUM_CPUS}")
    return cpus


def _safe_float(value: float) -> float:
    # float() raises on an integer no float can hold; every limit lies far inside these bounds.
    if isinstance(value, int):
        return float(max(-MAXIMUM_BYTES, min(value, MAXIMUM_BYTES)))
    return float(value)


def format_bytes(size_bytes: int) -> str:
    """Return the shortest exact text: `parse_bytes` reads back the same number."""
    for unit, factor in reversed(_BINARY_UNITS.items()):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return f"{size_bytes}B"


def format_duration(seconds: float) -> str:
    """Return an exact text: `parse_duration` reads back the same number of seconds."""
    if seconds <= 0:
        return "0s"
    if seconds != int(seconds):
        thousand = Decimal(repr(seconds)) * 1000
        if seconds < 1 and thousand == int(thousand):
            return f"{int(thousand)}ms"
        return f"{Decimal(repr(seconds)):f}s"
    hours, rest = divmod(int(seconds), 3600)
    minutes, left_s = divmod(rest, 60)
    parts = ((hours, "h"), (minutes, "m"), (left_s, "s"))
    return "".join(f"{count}{unit}" for count, unit in parts if count)
