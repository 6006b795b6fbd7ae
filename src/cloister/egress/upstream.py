"""Finds the real addresses of a name, checks every one of them, and dials what was checked."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from cloister.egress.bounds import Bounds
from cloister.egress.caller import prepare
from cloister.egress.refusal import Refusal, Unreachable

Address = IPv4Address | IPv6Address

# Where machines in clouds ask who they are, and get the keys for it. Some are public addresses.
_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        (
            "169.254.169.254",
            "169.254.170.2",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "fd00:ec2::254",
            "fd20:ce::254",
        ),
    )
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Ways of writing an IPv4 address, or of reaching one through somebody, that no server has.
_TUNNELS = tuple(
    map(
        ipaddress.ip_network,
        ("2002::/16", "2001::/32", "64:ff9b:1::/48", "::/96", "192.88.99.0/24"),
    )
)
_THREADS = 128


class Upstream:
    """The way from the gateway to the world, shared by all sandboxes.

    `answers` are names whose addresses are not to be asked for: for tests, which have no names.
    """

    def __init__(self, bounds: Bounds, answers: Mapping[str, Sequence[str]] | None = None) -> None:
        self._bounds = bounds
        self._answers = dict(answers or {})
        self._threads = ThreadPoolExecutor(_THREADS, "lookup")

    async def find(
        self, name: str, port: int, *, private: bool, turns: asyncio.Semaphore | None = None
    ) -> list[Address]:
        """Return the addresses of a name in the order to try them, every one of them checked.

        `turns` are how many may be looked for at once by who asks for this one.
        """
        found = await self._look_up(name, port, private, turns or asyncio.Semaphore())
        for address in found:
            reason = why_not(address, private=private, named=name)
            if reason is not None:
                raise Refusal(f"{name} has the address {address}, {reason}")
        return found

    async def _look_up(
        self, name: str, port: int, private: bool, turns: asyncio.Semaphore
    ) -> list[Address]:
        with contextlib.suppress(ValueError):
            return [ipaddress.ip_address(name)]
        if name in self._answers:
            return [ipaddress.ip_address(text) for text in self._answers[name]]
        # The final dot: what the host's own domains have under that name is not what was meant,
        # unless it was said to be the host's own.
        asked = name if private else f"{name}."
        try:
            async with asyncio.timeout(self._bounds.lookup_s):
                await turns.acquire()
                answers = await asyncio.wrap_future(self._ask(asked, port, turns))
        except TimeoutError:
            raise Unreachable(f"{name} was not found in time") from None
        except (OSError, UnicodeError):
            raise Unreachable(f"{name} was not found") from None
        texts = dict.fromkeys(str(answer[4][0]).partition("%")[0] for answer in answers)
        found = [ipaddress.ip_address(text) for text in texts]
        if not found:
            raise Unreachable(f"{name} has no address")
        return found

    def _ask(self, name: str, port: int, turns: asyncio.Semaphore) -> Future[Any]:
        loop = asyncio.get_running_loop()

        def give_back(_: object) -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(turns.release)

        asking = self._threads.submit(socket.getaddrinfo, name, port, 0, socket.SOCK_STREAM)
        # Not before the thread is free again, whoever has stopped waiting: the threads are for
        # all sandboxes, and a name server may be one of a program's friends.
        asking.add_done_callback(give_back)
        return asking

    async def dial(self, addresses: Sequence[Address], port: int) -> socket.socket:
        """Connect to the first of the checked addresses that answers."""
        loop = asyncio.get_running_loop()
        last: OSError | None = None
        try:
            async with asyncio.timeout(self._bounds.dial_s):
                for address in addresses:
                    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
                    try:
                        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
                    except OSError as error:
                        # No descriptor is left, which is nothing that the program has done.
                        last = error
                        continue
                    try:
                        prepare(sock)
                        await loop.sock_connect(sock, (str(address), port))
                    except OSError as error:
                        sock.close()
                        last = error
                    except BaseException:
                        sock.close()
                        raise
                    else:
                        return sock
        except TimeoutError:
            raise Unreachable("nobody answered in time") from None
        why = os.strerror(last.errno) if last is not None and last.errno else "no address"
        raise Unreachable(f"could not be reached: {why}")

    def close(self) -> None:
        """Ask for nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def why_not(address: Address, *, private: bool, named: str) -> str | None:
    """Return why an address is not dialled, or None.

    `private` is where the policy says that this name's may be private. One that gives out keys
    must be named itself.
    """
    if str(address) == named and private:
        return None
    meant = _meant(address)
    if meant in _METADATA or address in _METADATA:
        return "where a machine's own keys are given out"
    if meant.is_multicast or meant.is_unspecified:
        return "which is no host's"
    if private:
        return None
    if any(
        each.version == network.version and each in network
        for each in (address, meant)
        for network in _TUNNELS
    ):
        return "which leads through a tunnel"
    if not meant.is_global or (isinstance(meant, IPv6Address) and meant.is_site_local):
        return "which is not public; name it in egress.private if that is meant"
    if _is_own(address):
        return "which is this machine's own"
    return None


def _meant(address: Address) -> Address:
    """Return the address that is reached in the end."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _is_own(address: Address) -> bool:
    """Whether the address is this machine's: only then the kernel lets a socket have it."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
