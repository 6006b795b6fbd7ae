"""The secrets of one sandbox, as the gateway has them: put where they belong, stopped elsewhere."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from cloister.egress.refusal import Refusal
from cloister.egress.secrets.encodings import encodings, pieces
from cloister.egress.secrets.scrub import Patterns
from cloister.policy import Effect
from cloister.policy.secrets import Place, SecretBinding

Headers = list[tuple[bytes, bytes]]


class Misplaced(Refusal):
    """A placeholder where its secret does not belong; nothing of the request is sent on."""

    def __init__(self, name: str, place: str, host: str) -> None:
        super().__init__(
            f"the placeholder of {name} is in its {place}, sent to {host}, "
            "where that secret does not belong",
            f"secrets.{name}",
        )
        self.name = name
        self.place = place
        self.host = host


@dataclass(frozen=True, slots=True)
class BoundSecret:
    """One secret: what it is bound to, what the guest has, and what the host is sent."""

    binding: SecretBinding
    placeholder: str = field(repr=False)
    # Empty where it has been withdrawn.
    value: str = field(repr=False)
    retired: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Filled:
    """A request with its secrets in place: the parts that changed, and which were used where."""

    target: bytes
    headers: Headers = field(repr=False)
    used: tuple[tuple[str, str], ...] = ()


class Secrets:
    """All of one sandbox; without any, nothing is looked for."""

    def __init__(self, bound: Sequence[BoundSecret] = ()) -> None:
        self._bound = tuple(bound)
        named = {
            each: secret.binding.name
            for secret in self._bound
            for each in encodings(secret.placeholder)
        }
        self.placeholders = Patterns(named) if named else None
        self._values: dict[tuple[str, int], Patterns | None] = {}

    @classmethod
    def of(cls, tables: Mapping[str, Mapping[str, Any]], found: Sequence[SecretBinding]) -> Secrets:
        """Return those of a sandbox from what its owner has handed over."""
        return cls(
            [
                BoundSecret(
                    each,
                    str(tables[each.name]["placeholder"]),
                    str(tables[each.name]["value"]),
                    tuple(tables[each.name].get("retired", ())),
                )
                for each in found
            ]
        )

    def asks_first(self, name: str) -> bool:
        """Whether a person is asked before a secret is used for the first time."""
        return any(
            each.binding.name == name and each.binding.first_use is Effect.ASK
            for each in self._bound
        )

    def values_for(self, host: str, port: int) -> Patterns | None:
        """Return what must not come back from a host: the values of all that are bound to it.

        On whichever port: what one server of it was told, another may tell.
        """
        key = (host, port)
        if key not in self._values:
            named = {
                each: secret.binding.name
                for secret in self._bound
                if any(bound.covers(host) for bound in secret.binding.hosts)
                for value in (secret.value, *secret.retired)
                if value
                for each in (*encodings(value), *pieces(value))
            }
            self._values[key] = Patterns(named) if named else None
        return self._values[key]

    def fill(
        self, host: str, port: int, *, verified: bool, target: bytes, headers: Headers
    ) -> Filled:
        """Return a request with values for placeholders, or raise Misplaced.

        `verified` says that it goes by TLS to a server whose certificate is checked.
        """
        if self.placeholders is None:
            return Filled(target, headers)
        used: list[tuple[str, str]] = []
        # What is looked through for placeholders in the wrong place has no values in it.
        left_target, left_headers = target, headers
        for secret in self._bound if verified else ():
            if not secret.binding.is_for(host, port):
                continue
            changed = _fill(secret, target, headers)
            if changed is not None:
                if not secret.value:
                    raise Refusal(
                        f"the secret {secret.binding.name} has been withdrawn: when it was to be "
                        "renewed its source could not be read",
                        f"secrets.{secret.binding.name}",
                    )
                target, headers = changed
                left = _fill(secret, left_target, left_headers, value="")
                left_target, left_headers = left or (left_target, left_headers)
                used.append((secret.binding.name, place_of(secret.binding)))
        self.require_none(left_target, "path", host)
        for name, value in left_headers:
            self.require_none(name + b": " + value, f"header {name.decode('latin-1')}", host)
        return Filled(target, headers, tuple(used))

    def require_none(self, data: bytes, place: str, host: str) -> None:
        """Raise Misplaced if any placeholder is in it, in any of its forms."""
        if self.placeholders is None:
            return
        name = self.placeholders.first(data)
        if name is None and b"%" in data:
            name = self.placeholders.first(unquote_to_bytes(data))
        if name is not None:
            raise Misplaced(name, place, host)


def place_of(binding: SecretBinding) -> str:
    """Return where a secret belongs, in words."""
    match binding.place:
        case Place.HEADER:
            return f"header {binding.at.lower()}"
        case Place.QUERY:
            return f"query {binding.at}"
        case Place.BASIC:
            return "basic authentication"


def _fill(
    secret: BoundSecret, target: bytes, headers: Headers, value: str | None = None
) -> tuple[bytes, Headers] | None:
    """Return the request with this secret in its place, or None where it is not asked for."""
    binding = secret.binding
    old = secret.placeholder.encode()
    new = (secret.value if value is None else value).encode()
    if binding.place is Place.QUERY:
        filled = _fill_query(target, binding.at, old, quote(new, safe="").encode())
        return None if filled is None else (filled, headers)
    name = b"authorization" if binding.place is Place.BASIC else binding.at.lower().encode()
    changed, found = [], False
    for each, text in headers:
        after = text
        if each == name:
            if binding.place is Place.HEADER:
                after = text.replace(old, new)
            if after == text and name == b"authorization":
                user = binding.at.encode() if binding.place is Place.BASIC else None
                after = _fill_basic(text, user, old, new)
        found = found or after != text
        changed.append((each, after))
    return (target, changed) if found else None


def _fill_basic(text: bytes, user: bytes | None, old: bytes, new: bytes) -> bytes:
    """Return basic authentication with the password replaced; other things stay as they are."""
    scheme, _, coded = text.partition(b" ")
    if scheme.lower() != b"basic":
        return text
    try:
        who, colon, password = base64.b64decode(coded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return text
    if not colon or password != old or (user is not None and who != user):
        return text
    return scheme + b" " + base64.b64encode(who + b":" + new)


def _fill_query(target: bytes, name: str, old: bytes, new: bytes) -> bytes | None:
    path, mark, query = target.partition(b"?")
    parts, found = [], False
    for part in query.split(b"&") if mark else ():
        key, equals, text = part.partition(b"=")
        if equals and unquote_to_bytes(key) == name.encode() and unquote_to_bytes(text) == old:
            part, found = key + b"=" + new, True
        parts.append(part)
    return path + b"?" + b"&".join(parts) if found else None
