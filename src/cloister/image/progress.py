"""How far an image has come, for whoever shows it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from cloister.errors import CloisterError


class Stage(StrEnum):
    """Where a layer is: waiting for its turn, on its way in, here, or here all along."""

    WAITING = "waiting"
    FETCHING = "fetching"
    DONE = "done"
    PRESENT = "present"


@dataclass(frozen=True, slots=True)
class Progress:
    """One layer at one moment; `total_bytes` is None where nobody knows."""

    index: int
    count: int
    digest: str
    stage: Stage
    done_bytes: int
    total_bytes: int | None


OnProgress = Callable[[Progress], None]


class Stopped(CloisterError):
    """The caller has gone away while a thread was at work; the caller never sees it."""


class Reporter:
    """Carries progress from threads to the event loop, and the wish to stop the other way."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_progress = on_progress
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Let every thread that reports end with `Stopped`."""
        self._stopping.set()

    def tick(self, count: int = 0) -> None:
        """Something has moved that nobody shows."""
        if self._stopping.is_set():
            raise Stopped("the pull was stopped")

    def tell(self, progress: Progress) -> None:
        """Show it, from any thread."""
        self.tick()
        if self._on_progress is not None:
            self._loop.call_soon_threadsafe(self._on_progress, progress)


class LayerReporter:
    """Counts the bytes of one layer."""

    def __init__(
        self, reporter: Reporter, index: int, count: int, digest: str, total_bytes: int | None
    ) -> None:
        self._reporter = reporter
        self._fixed = (index, count, digest)
        self._total_bytes = total_bytes
        self._done_bytes = 0

    def tick(self, count: int) -> None:
        """So many bytes more; negative where some must come again."""
        self._done_bytes += count
        self.stage(Stage.FETCHING)

    def stage(self, stage: Stage) -> None:
        """It is somewhere else now."""
        if stage in (Stage.DONE, Stage.PRESENT) and self._total_bytes is not None:
            self._done_bytes = self._total_bytes
        self._reporter.tell(Progress(*self._fixed, stage, self._done_bytes, self._total_bytes))
