"""The seam of memory: a running sandbox is written to files, and goes on from them elsewhere."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from cloister.errors import CloisterError
from cloister.model import SandboxId
from cloister.runtime.base import Guest
from cloister.runtime.plan import Plan
from cloister.wire import Link

_SEED_BYTES = 64


@dataclass(frozen=True, slots=True)
class Renewal:
    """Who a sandbox is that goes on from another's memory; told to its guest before anything runs.

    `number` counts how often the memory has been renewed since its sandbox began.
    """

    number: int
    name: str
    seed: bytes = field(default_factory=lambda: secrets.token_bytes(_SEED_BYTES), repr=False)

    @property
    def told(self) -> bytes:
        """What programs read of it."""
        return f"renewal={self.number}\nsandbox={self.name}\n".encode()


@dataclass(frozen=True, slots=True)
class Memory:
    """What a sandbox knew at one moment: plain files in a directory that is itself in memory.

    Whoever goes on from it is the same sandbox, over the `link` it had; or another one, by a
    `renewal`, whose requests have numbers from `first_id` on. With `standing` that has been done
    already, and somebody stands still until it is known who it is.

    It may be what differs from other memories: `under` are their names, the lowest first, and they
    lie in the directory `under` of the files unless they are known to whoever saved it. `name` is
    what it is kept as itself. `disks` are those that a machine reads which was saved: their names,
    and where they lie; it can go on with no others. `told` is what programs read of
    renewals when it was saved.
    """

    files: Path
    first_id: int
    link: Link | None = None
    renewal: Renewal | None = None
    standing: Guest | None = None
    under: tuple[str, ...] = ()
    name: str | None = None
    disks: tuple[tuple[str, Path], ...] = ()
    told: bytes = b""


@runtime_checkable
class Remembering(Protocol):
    """A runtime that can do it; one that has neither of these cannot."""

    async def checkpoint(self, guest: Guest, is_kept: Callable[[str], bool]) -> Memory:
        """Write what is in memory into files, which the caller removes; then `destroy` the guest.

        `is_kept` says whether something can stand on the memory of a name; it may take a while.

        Nothing inside runs any more when this returns, and the disk is as of that moment. Its link
        is held, and open until somebody goes on with it or closes it. If it raises, the sandbox
        goes on as if nothing had been, or its loss has been told.
        """

    def memory_place(self, id: str) -> Path:
        """Return a directory to be made for unsealed memory: swept with everything else of ours."""

    def kept(self, guest: Guest, name: str) -> None:
        """What a guest has gone on from is kept by this name: its next memory may stand on it."""

    async def let_go(self, memory: Memory) -> None:
        """Hold nothing any more that was made of these files for those who go on from them."""

    async def restore(
        self, id: SandboxId, plan: Plan, memory: Memory, on_lost: Callable[[CloisterError], None]
    ) -> Guest:
        """Build the wall of a plan as `start` does, and go on in it from memory."""
