"""Sizes, durations and cpu counts: what people write is read exactly, all else is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import RequestError
from cloister.model import (
    format_bytes,
    format_duration,
    parse_bytes,
    parse_cpus,
    parse_duration,
)
from cloister.model.units import MAXIMUM_BYTES, MAXIMUM_SECONDS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1GiB", 2**30),
        ("512MiB", 2**29),
        ("10MB", 10**7),
        ("1.5 GiB", 3 * 2**29),
        ("0.5KiB", 512),
        ("2kB", 2000),
        ("2KB", 2000),
        ("7B", 7),
        ("7", 7),
        (7, 7),
        (MAXIMUM_BYTES, MAXIMUM_BYTES),
    ],
)
def test_sizes_are_read_exactly(text: object, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("60s", 60.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("250ms", 0.25),
        ("1d", 86_400.0),
        ("1.5s", 1.5),
        ("500us", 0.0005),
        ("60", 60.0),
        (60, 60.0),
        (0.25, 0.25),
    ],
)
def test_durations_are_read_exactly(text: object, expected: float) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("0.5", 0.5), (1, 1.0), (2.5, 2.5), ("4", 4.0)])
def test_cpus_are_read_exactly(text: object, expected: float) -> None:
    assert parse_cpus(text) == expected


NOT_A_NUMBER = [
    "", " ", "GiB", "-1", "-1GiB", "1..5", "1e9", "nan", "inf", "unlimited", "1G", "1gib", "1Mi",
    "1 0s", "30m1h", "1m1m", "1h ", "\u0661", "\0", "1" * 5000, 0, -1, 0.0, -0.5, "0", "0s", "0B",
    float("nan"), float("inf"), float("-inf"), True, False, None, [], {}, b"1", object(),
    10**400, -(10**400), 2**63 * 1.0, 2**63, "9999999PiB", "99999999999d",
]  # fmt: skip


@pytest.mark.parametrize("parse", [parse_bytes, parse_duration, parse_cpus])
@pytest.mark.parametrize("value", NOT_A_NUMBER, ids=lambda value: str(type(value).__name__))
def test_what_is_no_positive_finite_number_is_refused_by_field(
    parse: Callable[[object, str], float], value: object
) -> None:
    with pytest.raises(RequestError, match=r"^the field is "):
        parse(value, "the field")


def test_a_unit_without_a_base_is_refused_with_the_list_of_units() -> None:
    with pytest.raises(RequestError, match="KiB, MiB, GiB"):
        parse_bytes("1G", "memory")


def test_a_fraction_of_a_byte_is_refused() -> None:
    with pytest.raises(RequestError, match="whole number of bytes"):
        parse_bytes("0.3KiB")


@given(st.integers(1, MAXIMUM_BYTES))
def test_format_bytes_reads_back_the_same(size_bytes: int) -> None:
    assert parse_bytes(format_bytes(size_bytes)) == size_bytes


@given(
    st.floats(1e-9, MAXIMUM_SECONDS, allow_nan=False)
    | st.integers(1, MAXIMUM_SECONDS).map(float)
    | st.integers(1, 10**7).map(lambda count_ms: count_ms / 1000)
)
def test_format_duration_reads_back_the_same(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


def test_formatted_text_is_short() -> None:
    assert format_bytes(2**30) == "1GiB"
    assert format_bytes(1536) == "1536B"
    assert format_duration(5400) == "1h30m"
    assert format_duration(0.25) == "250ms"


@given(st.text() | st.integers() | st.floats() | st.binary() | st.none() | st.booleans())
def test_no_value_raises_anything_but_a_request_error(value: object) -> None:
    for parse in (parse_bytes, parse_duration, parse_cpus):
        try:
            assert parse(value) > 0
        except RequestError as error:
            assert str(error).isprintable()
