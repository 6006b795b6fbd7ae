"""What one sandbox may consume: friendly on the way in, plain numbers afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from cloister.errors import RequestError
from cloister.model.quote import quote
from cloister.model.units import (
    UNLIMITED,
    format_bytes,
    format_duration,
    parse_bytes,
    parse_cpus,
    parse_duration,
)

MINIMUM_MEMORY_BYTES = 16 * 2**20
MINIMUM_DISK_BYTES = 2**20
MINIMUM_SHM_BYTES = 4096
MINIMUM_DURATION_S = 0.001
MINIMUM_CPUS = 0.01


class _Usual(str):
    """A value that stands where nobody has named one."""

    __slots__ = ()


USUAL_DISK = _Usual("1GiB")


@dataclass(frozen=True, slots=True, init=False)
class Limits:
    """The limits of one sandbox; bytes, seconds and counts, and None where "unlimited" was asked.

    None is what a limit reads as, never how it is given: a forgotten value must not lift a wall.
    `disk_is_stated` tells the usual size from the same size that somebody asked for: the second
    is refused where nothing can hold a writer to it.
    """

    memory: int | None
    pids: int
    cpus: float | None
    disk: int | None
    inodes: int
    open_files: int
    shm: int
    output: int
    wall: float | None
    lifetime: float | None
    idle: float | None
    disk_is_stated: bool = field(compare=False, repr=False)

    def __init__(
        self,
        *,
        memory: int | str = "2GiB",
        pids: int = 256,
        cpus: float | str = 1.0,
        disk: int | str = USUAL_DISK,
        inodes: int = 200_000,
        open_files: int = 4096,
        shm: int | str = "64MiB",
        output: int | str = "10MiB",
        wall: float | str = "5m",
        lifetime: float | str = "1h",
        idle: float | str = UNLIMITED,
    ) -> None:
        given = {
            "memory": memory,
            "pids": pids,
            "cpus": cpus,
            "disk": disk,
            "inodes": inodes,
            "open_files": open_files,
            "shm": shm,
            "output": output,
            "wall": wall,
            "lifetime": lifetime,
            "idle": idle,
        }
        for name, value in given.items():
            object.__setattr__(self, name, _READERS[name](value))
        object.__setattr__(self, "disk_is_stated", not isinstance(disk, _Usual))

    def replace(self, **changes: Any) -> Limits:
        """Return these limits with some changed, given in any form the constructor takes."""
        unknown = sorted(set(changes) - set(LIMIT_NAMES))
        if unknown:
            raise RequestError(
                f"no limit is called {quote(unknown[0])}; the limits are {', '.join(LIMIT_NAMES)}"
            )
        # What is not changed has been read before, and is not read again.
        replaced = object.__new__(Limits)
        for each in fields(self):
            object.__setattr__(replaced, each.name, getattr(self, each.name))
        for name, value in changes.items():
            object.__setattr__(replaced, name, _READERS[name](value))
        if "disk" in changes:
            is_stated = not isinstance(changes["disk"], _Usual)
            object.__setattr__(replaced, "disk_is_stated", is_stated)
        return replaced

    def as_dict(self) -> dict[str, Any]:
        """Return the limits as a person would write them; `Limits(**d)` gives the same again."""
        return {
            "memory": UNLIMITED if self.memory is None else format_bytes(self.memory),
            "pids": self.pids,
            "cpus": UNLIMITED if self.cpus is None else self.cpus,
            "disk": self._disk_as_written(),
            "inodes": self.inodes,
            "open_files": self.open_files,
            "shm": format_bytes(self.shm),
            "output": format_bytes(self.output),
            "wall": UNLIMITED if self.wall is None else format_duration(self.wall),
            "lifetime": UNLIMITED if self.lifetime is None else format_duration(self.lifetime),
            "idle": UNLIMITED if self.idle is None else format_duration(self.idle),
        }

    def _disk_as_written(self) -> str:
        if not self.disk_is_stated:
            return USUAL_DISK
        return UNLIMITED if self.disk is None else format_bytes(self.disk)


LIMIT_NAMES: tuple[str, ...] = tuple(
    each.name for each in fields(Limits) if not each.name.endswith("_is_stated")
)

_MINIMUM_SIZES: Mapping[str, int] = {
    "memory": MINIMUM_MEMORY_BYTES,
    "disk": MINIMUM_DISK_BYTES,
    "shm": MINIMUM_SHM_BYTES,
    "output": 1,
}


def _size(name: str, value: object) -> int:
    size_bytes = parse_bytes(value, name)
    if size_bytes < _MINIMUM_SIZES[name]:
        least = format_bytes(_MINIMUM_SIZES[name])
        raise RequestError(f"{name} is {quote(value)}; the least is {least}")
    return size_bytes


def _duration(name: str, value: object) -> float:
    seconds = parse_duration(value, name)
    if seconds < MINIMUM_DURATION_S:
        least = format_duration(MINIMUM_DURATION_S)
        raise RequestError(f"{name} is {quote(value)}; the least is {least}")
    return seconds


def _cpus(value: object) -> float:
    cpus = parse_cpus(value)
    if cpus < MINIMUM_CPUS:
        raise RequestError(f"cpus is {quote(value)}; the least is {MINIMUM_CPUS}")
    return cpus


def _count(name: str, value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise RequestError(f"{name} is {quote(value)}; write a whole number")
    if not least <= value <= most:
        raise RequestError(f"{name} is {quote(value)}; it must be from {least} to {most}")
    return int(value)


def _or_unlimited(read: Callable[[object], float]) -> Callable[[object], float | None]:
    return lambda value: None if value == UNLIMITED else read(value)


# By the name of each limit, how a value that somebody wrote is read.
_READERS: Mapping[str, Callable[[object], float | None]] = {
    "memory": _or_unlimited(partial(_size, "memory")),
    "pids": partial(_count, "pids", least=2, most=1_000_000),
    "cpus": _or_unlimited(_cpus),
    "disk": _or_unlimited(partial(_size, "disk")),
    "inodes": partial(_count, "inodes", least=64, most=2**32 - 1),
    "open_files": partial(_count, "open_files", least=16, most=1_048_576),
    "shm": partial(_size, "shm"),
    "output": partial(_size, "output"),
    "wall": _or_unlimited(partial(_duration, "wall")),
    "lifetime": _or_unlimited(partial(_duration, "lifetime")),
    "idle": _or_unlimited(partial(_duration, "idle")),
}
