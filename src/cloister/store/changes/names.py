"""The names of a directory in order, however many there are."""

from __future__ import annotations

import heapq
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO

HELD_NAMES = 100_000
_HELD_RUNS = 32
_PIECE_BYTES = 64 * 1024


def sorted_names(directory: int, held: int = HELD_NAMES) -> Iterator[bytes]:
    """Return the names in a directory, sorted; more than `held` of them are sorted on disk."""
    runs: list[IO[bytes]] = []
    names: list[bytes] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            names.append(os.fsencode(entry.name))
            if len(names) == held:
                runs.append(_spill(sorted(names)))
                names = []
                if len(runs) == _HELD_RUNS:
                    runs = [_spill(_merge(runs, []))]
    names.sort()
    return _merge(runs, names) if runs else iter(names)


def union(iterators: list[Iterator[bytes]]) -> Iterator[bytes]:
    """Return the names of several sorted iterators, sorted, each once."""
    if len(iterators) == 1:
        return iterators[0]
    return _once(heapq.merge(*iterators))


def _once(names: Iterable[bytes]) -> Iterator[bytes]:
    last = None
    for name in names:
        if name != last:
            yield name
            last = name


def _spill(names: Iterable[bytes]) -> IO[bytes]:
    # Closed, and so removed, by whoever reads it to its end or drops it.
    file = tempfile.TemporaryFile()  # noqa: SIM115
    for name in names:
        file.write(name + b"\0")
    file.seek(0)
    return file


def _merge(runs: list[IO[bytes]], names: list[bytes]) -> Iterator[bytes]:
    try:
        yield from heapq.merge(names, *(_read(run) for run in runs))
    finally:
        for run in runs:
            run.close()


def _read(run: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while piece := run.read(_PIECE_BYTES):
        *names, rest = (rest + piece).split(b"\0")
        yield from names
