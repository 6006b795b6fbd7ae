"""Shows how far the layers of an image are: bars on a terminal, a line a layer otherwise."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from cloister.image import Progress

_PATIENCE_S = 1.0
_DIGEST_SHOWN = 19


class ImageProgress:
    """Appears on standard error after a second, and only if there is something to wait for.

    With `quiet` it does not: who asked for JSON reads an error there, and nothing else.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._begun = time.monotonic()
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._bars: Bars | None = None
        self._tasks: dict[int, TaskID] = {}
        self._told: dict[int, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def tell(self, progress: Progress) -> None:
        """Take where one layer is."""
        if self._quiet or time.monotonic() - self._begun < _PATIENCE_S:
            return
        if self._is_terminal:
            self._draw(progress)
        elif self._told.get(progress.index) != progress.stage.value:
            self._told[progress.index] = progress.stage.value
            print(
                f"cloister: layer {progress.index + 1} of {progress.count} "
                f"{progress.digest[:_DIGEST_SHOWN]}: {progress.stage.value}",
                file=sys.stderr,
                flush=True,
            )

    def _draw(self, progress: Progress) -> None:
        if self._bars is None:
            self._bars = _new_bars()
            self._bars.start()
        task = self._tasks.get(progress.index)
        if task is None:
            digest = progress.digest[:_DIGEST_SHOWN]
            task = self._bars.add_task(digest, total=progress.total_bytes, stage="")
            self._tasks[progress.index] = task
        self._bars.update(task, completed=progress.done_bytes, stage=progress.stage.value)


def _new_bars() -> Bars:
    # Slow to import, and of no use for what is here already.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
    from rich.progress import TransferSpeedColumn as SpeedColumn

    words = TextColumn("{task.description}", markup=False)
    stage = TextColumn("{task.fields[stage]}")
    columns = (words, BarColumn(), DownloadColumn(), SpeedColumn(), stage)
    return Progress(*columns, console=Console(stderr=True), transient=True)
