"""Shows on a terminal how far something is, once it has taken long enough to wonder."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cloister.cli.telling import note
from cloister.runtime.telling import listening

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID
    from rich.status import Status

_PATIENCE_S = 1.0
# Where nobody looks on: long enough that what is only slow on a busy machine says nothing.
_LONG_S = 30.0


class Progress:
    """A line that appears after a second and goes when the copy is done."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._begun = time.monotonic()
        self._shown: RichProgress | None = None
        self._task: TaskID | None = None
        self._wanted = sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown is not None:
            self._shown.stop()

    def tell(self, files: int, size_bytes: int) -> None:
        """Take how much has been copied so far."""
        if not self._wanted or time.monotonic() - self._begun < _PATIENCE_S:
            return
        if self._shown is None:
            self._show()
        if self._shown is not None and self._task is not None:
            self._shown.update(self._task, completed=size_bytes, files=files)

    def _show(self) -> None:
        # Slow to import, and most copies are done by now.
        from rich.console import Console
        from rich.progress import DownloadColumn, Progress, SpinnerColumn, TextColumn
        from rich.progress import TransferSpeedColumn as SpeedColumn

        console = Console(stderr=True)
        words = TextColumn("{task.description}", markup=False)
        files = TextColumn("{task.fields[files]} files")
        columns = (SpinnerColumn(), words, files, DownloadColumn(), SpeedColumn())
        self._shown = Progress(*columns, console=console, transient=True)
        self._task = self._shown.add_task(self._what, total=None, files=0)
        self._shown.start()


class Waiting:
    """What is being waited for, on standard error, for what cannot say how far it is.

    On a terminal it is a line that appears after a second and goes; elsewhere, such as in the log
    of a job, it is written once for each thing that takes long.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        patience_s = _PATIENCE_S if self._is_terminal else _LONG_S
        self._timer = threading.Timer(patience_s, self._show)
        self._timer.daemon = True
        self._listening = listening(self._tell)
        self._shown: Status | None = None
        self._is_late = self._is_over = False
        self._turn = threading.Lock()

    def __enter__(self) -> Self:
        self._listening.__enter__()
        self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        self._listening.__exit__(None, None, None)
        with self._turn:
            self._is_over = True
            if self._shown is not None:
                self._shown.stop()

    def _tell(self, what: str) -> None:
        with self._turn:
            self._what = what
            if self._is_late and not self._is_over:
                self._write()

    def _show(self) -> None:
        with self._turn:
            self._is_late = True
            if not self._is_over:
                self._write()

    def _write(self) -> None:
        if not self._is_terminal:
            note(self._what)
            return
        from rich.console import Console
        from rich.text import Text

        if self._shown is None:
            self._shown = Console(stderr=True).status(Text(self._what))
            self._shown.start()
        else:
            self._shown.update(Text(self._what))
