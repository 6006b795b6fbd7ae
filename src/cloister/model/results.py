"""How a process ended, what it printed and what it and its sandbox consumed."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

from cloister.errors import ProcessFailed
from cloister.model.units import format_bytes


class Reason(StrEnum):
    """Why a process ended; all but the first two mean that Cloister or a limit ended it."""

    EXIT = "exit"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    PIDS = "pids"
    DISK = "disk"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Usage:
    """What one process and its descendants consumed."""

    cpu_user_s: float
    cpu_system_s: float
    peak_memory_bytes: int
    read_bytes: int
    written_bytes: int
    processes: int


@dataclass(frozen=True, slots=True)
class SandboxUsage:
    """What a whole sandbox consumes now; None where the kernel keeps no record."""

    cpu_s: float | None
    memory_bytes: int
    peak_memory_bytes: int
    pids: int
    peak_pids: int | None
    disk_bytes: int
    inodes: int
    oom_kills: int


@dataclass(frozen=True, slots=True)
class Result:
    """The end of one process; its output is what was kept of it, `*_total` what there was.

    `exit_code` is 128 + signal after a death by signal, as a shell would say it, and None only
    where the process was ended before it had a code.
    """

    exit_code: int | None
    signal: int | None
    reason: Reason
    stdout_bytes: bytes
    stderr_bytes: bytes
    stdout_truncated: bool
    stderr_truncated: bool
    stdout_total: int
    stderr_total: int
    wall_s: float
    usage: Usage

    @property
    def stdout(self) -> str:
        """The kept standard output as text, with U+FFFD where it is not UTF-8."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """The kept standard error as text, with U+FFFD where it is not UTF-8."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        """Whether the process ended by itself with code 0."""
        return self.reason is Reason.EXIT and self.exit_code == 0

    def check(self) -> Result:
        """Return this result, or raise ProcessFailed if the process did not succeed."""
        if self.ok:
            return self
        last = self.stderr.strip().rpartition("\n")[2][:200]
        said = f": {_printable(last)}" if last else ""
        raise ProcessFailed(f"process did not succeed, {self.describe()}{said}", result=self)

    def describe(self) -> str:
        """Return one line for a person: how it ended and, where a limit did it, what to raise."""
        after = f"after {self.wall_s:.3g} s"
        match self.reason:
            case Reason.EXIT:
                return f"exit {self.exit_code} {after}"
            case Reason.SIGNAL:
                return f"killed by {_signal_name(self.signal)} {after}"
            case Reason.TIMEOUT:
                return f"killed {after}: wall time limit; raise with timeout="
            case Reason.MEMORY:
                peak = format_bytes(self.usage.peak_memory_bytes)
                return f"killed {after}: memory limit (peak {peak}); raise with Limits(memory=)"
            case Reason.PIDS:
                return f"ended {after}: process limit; raise with Limits(pids=)"
            case Reason.DISK:
                return (
                    f"ended {after}: disk limit, or a volume that is full; "
                    "raise with Limits(disk=) or, for many small files, Limits(inodes=)"
                )
            case Reason.CANCELLED:
                return f"killed {after}: cancelled by its caller"


def _signal_name(number: int | None) -> str:
    if number is None:
        return "a signal"
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        # Real-time signals have numbers but, but for the first and last, no names.
        return f"signal {number}"


def _printable(text: str) -> str:
    # The guest chose it: an escape sequence must not reach the caller's terminal in our error.
    return "".join(character if character.isprintable() else "?" for character in text)
