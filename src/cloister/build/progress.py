"""What a build tells whoever watches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class News(StrEnum):
    """A step begins, was done before, or is done; a program said something; a word about it."""

    STEP = "step"
    CACHED = "cached"
    DONE = "done"
    OUTPUT = "output"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """One piece of news of the step `index` of `count`; `output` is bytes from inside."""

    news: News
    index: int
    count: int
    text: str = ""
    output: bytes = b""
    elapsed_s: float = 0.0


OnBuildProgress = Callable[[BuildProgress], None]
