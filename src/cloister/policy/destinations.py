"""Hosts and ports: one spelling for each, and what a rule means by them."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from dataclasses import dataclass

from cloister.errors import RequestError
from cloister.model import quote

# A last label that is a number, in any base, would be an address to a resolver, so it is no name.
_NAME_LABEL = r"[a-z0-9_-]{1,63}"
_HOST_NAME = re.compile(
    rf"(?=.{{1,253}}\Z)(?:{_NAME_LABEL}\.)*(?!(?:[0-9]+|0x[0-9a-f]*)\Z){_NAME_LABEL}"
)
_ACE = "xn--"


@dataclass(frozen=True, slots=True)
class Connect:
    """A wish to reach a host; the name is lower case and has no final dot."""

    host: str
    port: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", parse_host(self.host))
        _require_port(self.port)


@dataclass(frozen=True, slots=True)
class Destination:
    """The connections a rule speaks of: a host, or "*.host" for the names one label below it.

    No ports means every port.
    """

    host: str
    ports: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        wild = isinstance(self.host, str) and self.host.startswith("*.")
        host = parse_host(self.host[2:] if wild else self.host)
        if wild and _HOST_NAME.fullmatch(host) is None:
            raise RequestError(f"host is {quote(self.host)}; an address has no names below it")
        object.__setattr__(self, "host", f"*.{host}" if wild else host)
        for port in self.ports:
            _require_port(port)

    def matches(self, request: object) -> bool:
        """Whether a request is such a connection."""
        if not isinstance(request, Connect):
            return False
        if self.ports and request.port not in self.ports:
            return False
        return self.covers(request.host)

    def covers(self, host: str) -> bool:
        """Whether a canonical name is meant; "*." stands for exactly one label."""
        if self.host.startswith("*."):
            label, dot, rest = host.partition(".")
            return bool(label and dot) and rest == self.host[2:]
        return host == self.host

    def __str__(self) -> str:
        return self.host + "".join(f":{port}" for port in self.ports)


def parse_host(value: object) -> str:
    """Return the one spelling of a host, or raise RequestError.

    A name in lower case without a final dot, its labels in ASCII (of others the A-labels, which
    must be the ones that encoding gives); an address as it is usually written, and an IPv4 address
    in IPv6 as the IPv4 address that it is.
    """
    # Not of anything else: "K" has a sign of its own that is a "k" in lower case.
    host = value.lower().removesuffix(".") if isinstance(value, str) and value.isascii() else ""
    if _HOST_NAME.fullmatch(host):
        for label in host.split("."):
            if label.startswith(_ACE) and not _is_encoded(label):
                raise RequestError(f"host is {quote(value)}; {quote(label)} encodes no name")
        return host
    return _parse_address(value, host)


def _parse_address(value: object, host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError as error:
        meant = _encoded(value)
        hint = "" if meant is None else f"; if it is meant, write {quote(meant)}"
        raise RequestError(
            f"host is {quote(value)}; write a host name or address in ASCII, without a port{hint}"
        ) from error
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise RequestError(f"host is {quote(value)}; write the address without its zone")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(address if mapped is None else mapped)


def _is_encoded(label: str) -> bool:
    """Whether a label is what encoding of its characters gives, and needed encoding."""
    try:
        text = label[len(_ACE) :].encode("ascii").decode("punycode")
    except UnicodeError:
        return False
    return not text.isascii() and _encoded_label(text) == label


def _encoded_label(text: str) -> str | None:
    plain = unicodedata.normalize("NFKC", text).lower()
    if plain != text or not all(each.isalnum() or each in "-_" or _joins(each) for each in plain):
        return None
    try:
        return plain if plain.isascii() else _ACE + plain.encode("punycode").decode("ascii")
    except UnicodeError:
        return None


def _joins(character: str) -> bool:
    # Vowel signs and the like are parts of words in many scripts.
    return unicodedata.category(character) in ("Mn", "Mc")


def _encoded(value: object) -> str | None:
    """Return the name that a text in other letters probably means."""
    if not isinstance(value, str) or value.isascii() or len(value) > 253:
        return None
    labels = [
        _encoded_label(unicodedata.normalize("NFKC", each).lower()) for each in value.split(".")
    ]
    name = ".".join(each or "" for each in labels)
    return name if _HOST_NAME.fullmatch(name) else None


def _require_port(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65_535:
        raise RequestError(f"port is {quote(value)}; ports are from 1 to 65535")
