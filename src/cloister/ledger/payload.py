"""What every kind of entry has in common: a name, and how it may be counted in a flood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from cloister.model import Usage

# Whose word an entry is: the kernel's, the host side's own act, or only the guest's.
Source = Literal["kernel", "host", "guest"]


class Payload:
    """What one entry says; each kind is a frozen dataclass below this."""

    __slots__ = ()
    kind: ClassVar[str]

    def flood(self) -> str | None:
        """Return what this is counted under when a guest causes too much of it; None is never."""
        return None

    @property
    def is_refusal(self) -> bool:
        """Whether it says that something was not let through."""
        return False


@dataclass(frozen=True, slots=True)
class Spent:
    """What something consumed, in whole numbers so that every reader agrees on them."""

    cpu_user_us: int
    cpu_system_us: int
    peak_memory_bytes: int
    read_bytes: int
    written_bytes: int
    processes: int

    @classmethod
    def of(cls, usage: Usage) -> Spent:
        """Return the same as a process's usage says."""
        return cls(
            cpu_user_us=round(usage.cpu_user_s * 1e6),
            cpu_system_us=round(usage.cpu_system_s * 1e6),
            peak_memory_bytes=usage.peak_memory_bytes,
            read_bytes=usage.read_bytes,
            written_bytes=usage.written_bytes,
            processes=usage.processes,
        )
