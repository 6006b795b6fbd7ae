"""Where it may listen, and which tokens are worth asking for."""

from __future__ import annotations

import pytest

from cloister.errors import RequestError
from cloister.mcp.listening import Address, parse_listen, parse_token


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7700", Address("127.0.0.1", 7700)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:80", Address("::1", 80)),
    ],
)
def test_this_machine_is_listened_on(text: str, address: Address) -> None:
    assert parse_listen(text) == address


@pytest.mark.parametrize(
    "text", ["0.0.0.0:1", ":1", "1", "127.0.0.1:x", "127.0.0.1:70000", "10.0.0.1:1", "[::]:1"]
)
def test_anything_else_is_not(text: str) -> None:
    with pytest.raises(RequestError):
        parse_listen(text)


def test_a_token_that_could_be_guessed_is_refused() -> None:
    assert parse_token("  0123456789abcdef\n", "X") == "0123456789abcdef"
    for text in ("", "short", "0123456789abcd\x00f", "0123456789abcde\u20ac"):
        with pytest.raises(RequestError):
            parse_token(text, "X")
