"""What a machine's memory stands on: memories that are kept, and where it has changed since."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass

HEAD = struct.Struct("<QQ")
# In the length of a record: as many zeros are there, and no bytes follow.
ZEROS = 1 << 63
# Each is read by whoever goes on, and stays on the disk for as long as something stands on it.
MOST_LAYERS = 8
# As often may the same page be in them, on average.
_MOST_TIMES = 2


@dataclass(frozen=True, slots=True)
class Layer:
    """One memory that is kept: its name, and where it has something, as heads of records."""

    name: str
    heads: bytes = b""


@dataclass(frozen=True, slots=True)
class Standing:
    """The layers under a machine's memory, the lowest first, and what changed since them.

    One that began from the lowest itself has that at hand, where nobody has kept it yet.
    """

    layers: tuple[Layer, ...] = ()
    beyond: bytes = b""
    began_from_lowest: bool = False

    def kept_as(self, name: str) -> Standing:
        """Return the same where what changed is kept by a name now."""
        return Standing((*self.layers, Layer(name, self.beyond)))

    def next_over(self, is_kept: Callable[[str], bool]) -> Standing:
        """Return on what the next memory stands, `beyond` being what has to be in it in any case.

        On as many as are still there, if they are not too many and do not say the same again and
        again; else on the lowest alone. Without layers all of memory has to be.
        """
        there = tuple(itertools.takewhile(lambda layer: is_kept(layer.name), self.layers))
        if not there and self.began_from_lowest:
            there = self.layers[:1]
        is_deep = len(there) >= MOST_LAYERS
        if is_deep or _written_bytes(there[1:]) > _MOST_TIMES * _covered_bytes(there[1:]):
            there = there[:1]
        dropped = b"".join(layer.heads for layer in self.layers[len(there) :])
        return Standing(there, dropped + self.beyond, self.began_from_lowest)


def _written_bytes(layers: tuple[Layer, ...]) -> int:
    return sum(length & ~ZEROS for layer in layers for _, length in HEAD.iter_unpack(layer.heads))


def _covered_bytes(layers: tuple[Layer, ...]) -> int:
    heads = sorted(head for layer in layers for head in HEAD.iter_unpack(layer.heads))
    covered = end = 0
    for offset, length in heads:
        last = offset + (length & ~ZEROS)
        covered += max(0, last - max(offset, end))
        end = max(end, last)
    return covered
