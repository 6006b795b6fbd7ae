"""What a sandbox stands on: the host's own programs, any directory, or an image."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cloister.model import parse_absolute_path, parse_target, quote
from cloister.policy.fields import placed, wrong

# A registry, a repository, a tag and a digest are all ASCII; whether it is there is asked later.
_REFERENCE = re.compile(r"(?![-/])[!-~]{1,255}")


@dataclass(frozen=True, slots=True, init=False)
class HostRoot:
    """The host's own programs, read-only; `extra` names further host directories to show."""

    extra: tuple[str, ...]

    def __init__(self, extra: Iterable[str] = ()) -> None:
        if isinstance(extra, str):
            raise wrong("root.extra", f"is {quote(extra)}; write a list of paths")
        parsed = tuple(placed("root.extra", parse_target, path, "path") for path in extra)
        object.__setattr__(self, "extra", parsed)


@dataclass(frozen=True, slots=True, init=False)
class DirectoryRoot:
    """Any directory as root filesystem, read-only below the sandbox's own writable layer."""

    path: Path

    def __init__(self, path: str | os.PathLike[str]) -> None:
        text = placed("root.path", parse_absolute_path, path, "path")
        # The host's own root would show its secrets, however its path is spelt.
        if ".." in text.split("/") or not text.strip("/.") or "/./" in f"{text}/":
            raise wrong(
                "root.path",
                f'is {quote(text)}; name a directory other than / and without "." or ".."; '
                'for the host\'s own programs use kind = "host"',
            )
        object.__setattr__(self, "path", Path(text))


@dataclass(frozen=True, slots=True, init=False)
class ImageRoot:
    """An image by its name, read-only below the sandbox's own writable layer."""

    reference: str

    def __init__(self, reference: str) -> None:
        if not isinstance(reference, str) or _REFERENCE.fullmatch(reference) is None:
            raise wrong(
                "root.image",
                f"is {quote(reference)}; write 1 to 255 printable ASCII characters "
                'without spaces, the first not "-" or "/"',
            )
        object.__setattr__(self, "reference", reference)


Root = HostRoot | DirectoryRoot | ImageRoot
