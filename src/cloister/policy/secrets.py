"""Secrets as a policy knows them: where each comes from and where it may go, never its value."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cloister.errors import RequestError
from cloister.model import quote
from cloister.policy.destinations import Connect, Destination
from cloister.policy.effect import Effect
from cloister.policy.egress_rules import parse_destination, str_destination

MOST_SECRETS = 100
_MOST_HOSTS = 100
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_QUERY = re.compile(r"[A-Za-z0-9._~-]{1,100}")
_USER = re.compile(r"[!-9;-~]{1,100}")
# Of the request itself, or of its framing: a secret in one of these would change what is sent.
_NOT_FOR_SECRETS = frozenset(
    (
        *("host", "content-length", "transfer-encoding", "connection", "te", "trailer"),
        *("upgrade", "expect", "proxy-authorization", "proxy-connection", "keep-alive"),
    )
)


class Source(StrEnum):
    """Where a value is read when a sandbox starts; `mint` makes one for it alone.

    `tenant` is stored on a server, by whom the sandbox belongs to.
    """

    ENV = "env"
    FILE = "file"
    COMMAND = "command"
    KEYRING = "keyring"
    VAULT = "vault"
    TENANT = "tenant"
    MINT = "mint"


class Place(StrEnum):
    """Where in a request a secret belongs."""

    HEADER = "header"
    QUERY = "query"
    BASIC = "basic"


@dataclass(frozen=True, slots=True, init=False)
class SecretBinding:
    """One secret: the name of its variable inside, its source, its hosts, its place in a request.

    `where` is what the source needs: a variable, a path, a service; for commands see `argv`.
    """

    name: str
    source: Source
    where: str
    hosts: tuple[Destination, ...]
    place: Place
    # The header, the parameter of the query, or the user of basic authentication.
    at: str
    argv: tuple[str, ...]
    revoke: tuple[str, ...]
    first_use: Effect

    def __init__(self, name: str, **table: Any) -> None:
        for key in table:
            if key not in SECRET_PARSERS and key != "from_":
                raise RequestError(f"{quote(key)} is no key of a secret; see docs/secrets.md")
        origin = table.get("from", table.get("from_"))
        source, where, argv = _parse_source(origin, table.get("mint"))
        place, at = _parse_place(table)
        revoke = () if table.get("revoke") is None else _parse_argv(table["revoke"], "revoke")
        if revoke and source is not Source.MINT:
            raise RequestError("revoke has no meaning without mint; add mint or remove it")
        values = {
            "name": parse_secret_name(name),
            "source": source,
            "where": where,
            "hosts": _parse_hosts(table.get("hosts")),
            "place": place,
            "at": at,
            "argv": argv,
            "revoke": revoke,
            "first_use": _parse_first_use(table.get("first_use", "allow")),
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)

    def is_for(self, host: str, port: int) -> bool:
        """Whether it is bound to a canonical name and port."""
        connect = Connect(host, port)
        return any(each.matches(connect) for each in self.hosts)

    def as_dict(self) -> dict[str, Any]:
        """Return it as the table of a policy file; there is no value in it."""
        key = next(key for key, (place, _) in _PLACES.items() if place is self.place)
        minted = self.source is Source.MINT
        return {
            **({"mint": list(self.argv)} if minted else {"from": f"{self.source}:{self.where}"}),
            "hosts": [str_destination(each) for each in self.hosts],
            key: self.at,
            **({"revoke": list(self.revoke)} if self.revoke else {}),
            **({"first_use": self.first_use.value} if self.first_use is Effect.ASK else {}),
        }


def parse_secrets(value: object) -> tuple[SecretBinding, ...]:
    """Return the bindings of a table of tables, or of a list of them."""
    if value == ():
        return ()
    if isinstance(value, Mapping):
        found = [
            each if isinstance(each, SecretBinding) else _from_table(name, each)
            for name, each in value.items()
        ]
    elif isinstance(value, Iterable) and not isinstance(value, str):
        found = list(value)
    else:
        raise RequestError(f"secrets is {quote(value)}; write a table of secrets")
    if len(found) > MOST_SECRETS:
        raise RequestError(f"{len(found)} secrets; the most is {MOST_SECRETS}")
    for each in found:
        if not isinstance(each, SecretBinding):
            raise RequestError(f"secrets has {quote(each)}; write a SecretBinding")
    if len({each.name for each in found}) < len(found):
        raise RequestError("secrets has two of one name; keep one of them")
    return tuple(sorted(found, key=lambda each: each.name))


def _from_table(name: str, table: object) -> SecretBinding:
    if not isinstance(table, Mapping):
        raise RequestError(f"secrets.{quote(name)} is no table; write from, hosts and header")
    return SecretBinding(name, **table)


def parse_secret_name(value: object) -> str:
    """Return the name of a secret, which is that of a variable."""
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise RequestError(
            f"the secret {quote(value)} has no name for a variable: "
            "write up to 100 letters, digits and _, a digit not first"
        )
    return value


def _parse_source(origin: object, mint: object) -> tuple[Source, str, tuple[str, ...]]:
    if (origin is None) == (mint is None):
        raise RequestError("a secret has one source: write from, or mint, and not both")
    if mint is not None:
        return Source.MINT, "", _parse_argv(mint, "mint")
    kinds = [each.value for each in Source if each is not Source.MINT]
    kind, colon, where = origin.partition(":") if isinstance(origin, str) else ("", "", "")
    if kind not in kinds or not colon or not where.strip() or "\0" in where or len(where) > 4096:
        # Not quoted: somebody may have written the secret itself here.
        raise RequestError(
            "from is no source of a secret; write " + ", ".join(f'"{each}:..."' for each in kinds)
        )
    source = Source(kind)
    return source, where, _parse_argv(where, "from") if source is Source.COMMAND else ()


def _parse_argv(value: object, field: str) -> tuple[str, ...]:
    try:
        found = shlex.split(value) if isinstance(value, str) else value
    except ValueError as error:
        raise RequestError(f"{field} is no command: {error}".lower()) from None
    if not isinstance(found, list | tuple) or not found or not found[0]:
        raise RequestError(f"{field} is no command; write a list of text")
    if not all(isinstance(each, str) and "\0" not in each for each in found):
        raise RequestError(f"{field} is no command; write a list of text without NUL")
    return tuple(found)


def _parse_hosts(value: object) -> tuple[Destination, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise RequestError(f"hosts is {quote(value)}; write the list of hosts it may be sent to")
    found = tuple(parse_destination(each, "hosts") for each in value)
    if not 0 < len(found) <= _MOST_HOSTS:
        raise RequestError(f"hosts has {len(found)} entries; write 1 to {_MOST_HOSTS}")
    for each in found:
        if each.host.startswith("*."):
            # Whoever may make a name below it would be sent the secret.
            raise RequestError(f"hosts has {each.host}; a secret is bound to exact names only")
    return found


_PLACES = {
    "header": (Place.HEADER, _HEADER),
    "query": (Place.QUERY, _QUERY),
    "basic_user": (Place.BASIC, _USER),
}


def _parse_place(table: Mapping[str, Any]) -> tuple[Place, str]:
    named = [key for key in _PLACES if table.get(key) is not None]
    if len(named) != 1:
        raise RequestError("a secret has one place: write header, or query, or basic_user")
    return _parse_named(named[0], table[named[0]])


def _parse_named(key: str, value: object) -> tuple[Place, str]:
    place, form = _PLACES[key]
    if not isinstance(value, str) or form.fullmatch(value) is None:
        raise RequestError(f"{key} is {quote(value)}; write the name as it is in a request")
    if place is Place.HEADER and value.lower() in _NOT_FOR_SECRETS:
        raise RequestError(f"header is {quote(value)}, which says how a request is sent; no secret")
    return place, value


def _parse_first_use(value: object) -> Effect:
    if not isinstance(value, str) or value not in (Effect.ALLOW.value, Effect.ASK.value):
        raise RequestError(f"first_use is {quote(value)}; it may be allow, ask")
    return Effect(value)


# By key, in the order of the documentation: what reads one of them by itself.
SECRET_PARSERS: Mapping[str, Callable[[object], object]] = {
    "from": lambda value: _parse_source(value, None),
    "hosts": _parse_hosts,
    "header": lambda value: _parse_named("header", value),
    "query": lambda value: _parse_named("query", value),
    "basic_user": lambda value: _parse_named("basic_user", value),
    "mint": lambda value: _parse_argv(value, "mint"),
    "revoke": lambda value: _parse_argv(value, "revoke"),
    "first_use": _parse_first_use,
}
