"""Shows a build on standard error: a line for each step, and what its programs say."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from cloister.cli.neutral import Neutraliser, neutralise

if TYPE_CHECKING:
    from cloister.build.progress import BuildProgress

_SHOWN_CHARACTERS = 120


class BuildLines:
    """Lines that stay; `quiet` leaves out all but notes."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._neutraliser = Neutraliser()
        self._at_line_start = True

    def tell(self, progress: BuildProgress) -> None:
        """Show one piece of news."""
        news = progress.news.value
        if news == "note":
            self._line(f"note: {progress.text}")
        elif self._quiet:
            return
        elif news == "step":
            text = progress.text
            cut = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
            self._line(f"[{progress.index}/{progress.count}] {cut}")
        elif news == "cached":
            self._line(f"[{progress.index}/{progress.count}] was done before")
        elif news == "output":
            self._write(self._neutraliser.feed(progress.output).decode())

    def _line(self, text: str) -> None:
        begin = "" if self._at_line_start else "\n"
        self._write(f"{begin}{neutralise(text)}\n")

    def _write(self, text: str) -> None:
        if not text:
            return
        self._at_line_start = text.endswith("\n")
        # Nobody reads standard error any more: the build goes on all the same.
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()
