"""A value that must not reach the guest, a log, the ledger or a traceback."""

from __future__ import annotations

from typing import NoReturn

from cloister.errors import RequestError

_LEAST, _MOST = 8, 16 * 1024


class SecretValue:
    """One secret, known by its name; whoever needs the value says `reveal`."""

    __slots__ = ("_value", "name")

    def __init__(self, name: str, value: str) -> None:
        self.name = name
        self._value = _parsed(name, value)

    def reveal(self) -> str:
        """Return the value, for the gateway's document and for nothing else."""
        return self._value

    def __repr__(self) -> str:
        return f"SecretValue({self.name!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret does not leave this process")


def _parsed(name: str, value: str) -> str:
    """Return a value that can be in a header; the reasons never have it in them."""
    # Files and commands end their text with a line; none of it is of the secret.
    value = value.removesuffix("\n").removesuffix("\r")
    if not _LEAST <= len(value) <= _MOST:
        raise RequestError(
            f"the value of the secret {name} has {len(value)} characters; "
            f"write {_LEAST} to {_MOST}: one that is shorter could not be told from other text"
        )
    if not all(" " <= each <= "~" for each in value) or value != value.strip():
        raise RequestError(
            f"the value of the secret {name} has characters that no header may have; "
            "write printable ASCII on one line, without spaces around it"
        )
    return value
