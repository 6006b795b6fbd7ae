"""The places of a policy text: what is read of its tables, and what is wrong with a line of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cloister.errors import PolicyError, RequestError
from cloister.model import quote
from cloister.policy.fields import nearest
from cloister.policy.locate import KeyPath


class Places:
    """Where each key of one text was written; `schema` is every key that a policy may have."""

    def __init__(self, where: str, lines: Mapping[KeyPath, int], schema: Sequence[str]) -> None:
        self._where = where
        self._lines = lines
        self._schema = schema

    def table(self, path: KeyPath, table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        """Return a table of a table; empty where there is none."""
        value = table.get(name, {})
        if not isinstance(value, dict):
            raise self.error((*path, name), f"{name} is {quote(value)}; write a table, [{name}]")
        return value

    def required(self, path: KeyPath, table: Mapping[str, Any], name: str) -> Any:
        """Return a value that must be there."""
        if name not in table:
            raise self.error(path, f"{name} is missing; add {name} = ...")
        return table[name]

    def refuse_unknown(self, path: KeyPath, table: Mapping[str, Any], valid: Iterable[str]) -> None:
        """Refuse a key that is none."""
        for name in table:
            if name in valid:
                continue
            # A key in the wrong table is as common a slip as a misspelt one.
            elsewhere = [key for key in self._schema if key.rpartition(".")[2] == name]
            meant = elsewhere[0] if elsewhere else nearest(name, valid)
            raise self.error((*path, name), "unknown key", meant)

    @contextmanager
    def at(self, path: KeyPath) -> Iterator[None]:
        """Say where: turn an error about a value into one with its place."""
        try:
            yield
        except PolicyError as error:
            raise self.error(path, error.message, error.nearest) from error
        except RequestError as error:
            raise self.error(path, str(error)) from error

    def error(self, path: KeyPath, message: str, meant: str | None = None) -> PolicyError:
        """Return an error about a key, with the place where it is written."""
        known = (self._lines.get(path[:length]) for length in range(len(path), 0, -1))
        line = next((line for line in known if line is not None), None)
        at = self._where if line is None else f"{self._where}:{line}"
        return PolicyError(message, place=f"{at} {dotted(path)}", nearest=meant)


_BARE = re.compile(r"[A-Za-z0-9_-]{1,64}")


def dotted(path: KeyPath) -> str:
    """Return a key as it is written in a policy."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part if _BARE.fullmatch(part) else quote(part)}"
    return text.removeprefix(".")
