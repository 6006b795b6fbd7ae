"""Values of a policy's fields: one of a few words, of a kind, or an error that names the field."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, TypeVar

from cloister.errors import PolicyError, RequestError
from cloister.model import quote

# One label of a host name (RFC 1123); a dot would make programs look for a domain there is none of.
_HOSTNAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """Return the valid name most like the given one, if any is like it."""
    # difflib's time grows with the product of the lengths, and no valid name is long.
    found = difflib.get_close_matches(name[:64], list(valid), 1, 0.5)
    return found[0] if found else None


_Choice = TypeVar("_Choice", bound=StrEnum)


def parse_choice(field: str, kind: type[_Choice], value: object) -> _Choice:
    """Return the member of that value, or say which values there are."""
    if isinstance(value, kind):
        return value
    names = [member.value for member in kind]
    if isinstance(value, str) and value in names:
        return kind(value)
    raise PolicyError(
        f"{field} is {quote(value)}; it may be {', '.join(names)}",
        place=f"policy {field}",
        nearest=nearest(value, names) if isinstance(value, str) else None,
    )


def parse_hostname(value: object) -> str:
    """Return a host name of one label."""
    if not isinstance(value, str) or _HOSTNAME.fullmatch(value) is None:
        raise wrong(
            "hostname",
            f"is {quote(value)}; write 1 to 63 letters, digits and inner hyphens",
        )
    return value


def instance(field: str, kind: Any, value: Any) -> Any:
    """Return a value of that kind, or say what to write."""
    if not isinstance(value, kind):
        name = getattr(kind, "__name__", "HostRoot, DirectoryRoot or ImageRoot")
        raise wrong(field, f"is {quote(value)}; write a {name}")
    return value


def placed(field: str, parse: Any, *arguments: Any) -> Any:
    """Parse a value; what is wrong with it is said with its place."""
    try:
        return parse(*arguments)
    except RequestError as error:
        raise PolicyError(str(error), place=f"policy {field}") from error


def wrong(field: str, message: str) -> PolicyError:
    """Return an error about one field."""
    return PolicyError(f"{field} {message}", place=f"policy {field}")
