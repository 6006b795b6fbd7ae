"""The sockets of a sandbox's one way out: they are inside its network, and the host has them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from cloister.errors import LaunchFailed

# Where programs that know of proxies find them, on the loopback inside.
HTTP_PROXY_PORT = 3128
SOCKS_PORT = 1080
# Whatever address a program asks, questions for names are answered; this one is in resolv.conf.
NAME_SERVER = "198.18.0.1"
_COUNT = 6


@dataclass(frozen=True, slots=True)
class Doors:
    """Descriptors: three listening sockets, two for names, and the kernel's word on refusals."""

    tcp: int
    names: int
    names_tcp: int
    http_proxy: int
    socks: int
    refused: int

    @classmethod
    def of(cls, fds: Sequence[int]) -> Doors | None:
        """Return what came with a launch, or None where nothing did."""
        if not fds:
            return None
        if len(fds) != _COUNT:
            close_all(fds)
            raise LaunchFailed(
                f"the launcher opened {len(fds)} sockets of the way out instead of {_COUNT}; "
                "nothing ran",
                step="egress",
            )
        return cls(*fds)

    @property
    def fds(self) -> tuple[int, ...]:
        """All of them, in the order in which they travel."""
        return (
            self.tcp,
            self.names,
            self.names_tcp,
            self.http_proxy,
            self.socks,
            self.refused,
        )

    def close(self) -> None:
        """Let go of them. The network inside goes on refusing."""
        close_all(self.fds)


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
