"""What every place that images come from can do."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

# Called with the number of bytes that came since the last call; it may raise to end the work.
Tick = Callable[[int], None]
# Whoever takes it closes it: a file or a connection may be open behind it.
Chunks = Generator[bytes, None, None]


@dataclass(frozen=True, slots=True)
class LayerSource:
    """One layer as it is kept there, compressed or not. `open` checks what it hands out."""

    size_bytes: int | None
    open: Callable[[Tick], Chunks]


@dataclass(frozen=True, slots=True)
class Resolved:
    """An image found: its digest, its configuration as bytes, its layers, the lowest first.

    `aliases` are digests of what led to it; pinning one of them means this image too.
    """

    digest: str
    config: bytes
    layers: Sequence[LayerSource]
    aliases: tuple[str, ...] = ()
    name: str | None = None


class Source(Protocol):
    """Somewhere an image is. Its calls block; they belong into a thread."""

    @property
    def origin(self) -> str:
        """Where that is, for people."""

    def resolve(self, tick: Tick) -> Resolved:
        """Find the image, and check everything about it but its layers."""

    def close(self) -> None:
        """Let go of what is open."""
