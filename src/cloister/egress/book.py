"""The addresses a sandbox is told instead of real ones: one for each name, never for another."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network

from cloister.errors import CloisterError

# Set aside for tests of networks (RFC 2544), so nobody on the Internet has one of them.
NETWORK = IPv4Network("198.18.0.0/15")
# The first is the network's own, the second the name server's.
_FIRST = 2


class BookFull(CloisterError):
    """The sandbox has asked for more names than it may."""


class Book:
    """Which address stands for which name, in one sandbox, as long as it lives."""

    def __init__(self, most: int, known: Mapping[str, str] | None = None) -> None:
        self._most = most
        self._addresses: dict[str, IPv4Address] = {}
        self._names: dict[IPv4Address, str] = {}
        for name, text in (known or {}).items():
            self._put(name, IPv4Address(text))

    def _put(self, name: str, address: IPv4Address) -> None:
        self._addresses[name] = address
        self._names[address] = name

    def find(self, name: str) -> IPv4Address | None:
        """Return the address of a name that has one."""
        return self._addresses.get(name)

    def give(self, name: str) -> IPv4Address:
        """Return the address of a name, a new one if it has none yet."""
        address = self._addresses.get(name)
        if address is None:
            if len(self._addresses) >= self._most:
                raise BookFull(f"the sandbox has asked for {self._most} names; that is the most")
            # Nothing is ever taken out, so the count is what has been used.
            address = NETWORK[_FIRST + len(self._addresses)]
            self._put(name, address)
        return address

    def name_at(self, address: IPv4Address) -> str | None:
        """Return the name that an address was given for."""
        return self._names.get(address)
