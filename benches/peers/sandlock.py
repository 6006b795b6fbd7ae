"""sandlock: Landlock and seccomp around an ordinary child, no namespaces."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from benches.measure import NotMeasurable

READABLE = ["/usr", "/bin", "/lib", "/lib64", "/etc", "/proc", "/dev"]


class Sandlock:
    name: ClassVar[str] = "sandlock"

    def __init__(self, scratch: Path) -> None:
        try:
            import sandlock
        except ImportError as error:
            raise NotMeasurable(f"sandlock is not installed: {error}") from error
        self.sandbox = sandlock.Sandbox

    async def fresh(self, argv: Sequence[str]) -> None:
        # Its call blocks; from an event loop it has to go to a thread.
        result = await asyncio.to_thread(self.run, list(argv))
        if result is not None:
            raise NotMeasurable(f"sandlock: {result}")

    def run(self, argv: list[str]) -> str | None:
        result = self.sandbox(fs_readable=READABLE, fs_writable=["/tmp"]).run(argv)
        return None if result.success else f"{result.reason} {result.error}"
