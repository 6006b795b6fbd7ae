"""A build's context: the files of one host directory, gone through without leaving it."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from cloister.build.ignore import (
    NOTHING_IGNORED,
    Ignore,
    compile_name,
    is_pattern,
    parse_ignore,
)
from cloister.errors import NotFound, RequestError
from cloister.model import quote

_MAXIMUM_DEPTH = 256
_MAXIMUM_LINKS = 40
_IGNORE_FILE = ".dockerignore"
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Found:
    """One thing of the context; `path` is relative to what was named, empty for that itself."""

    path: str
    status: os.stat_result
    target: str
    # Where it can be opened until the walk moves on.
    directory: int
    name: str

    def open(self) -> int:
        """Open a regular file, and make sure that it is the one that was looked at."""
        handle = os.open(self.name, _FILE_FLAGS, dir_fd=self.directory)
        if not os.path.samestat(os.fstat(handle), self.status):
            os.close(handle)
            raise RequestError(f"{quote(self.path)} was replaced while it was read; build again")
        return handle


class SourceTree:
    """One directory. Nothing of the host outside of it can be named, by no path and by no link."""

    def __init__(self, directory: Path, ignore: Ignore = NOTHING_IGNORED) -> None:
        self._ignore = ignore
        try:
            self._top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise RequestError(
                f"context {directory} cannot be used: {error.strerror}; name a directory"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._top)

    def match(self, source: str) -> list[str]:
        """Return the paths that a source of COPY stands for, sorted; none is an error."""
        names = parts_of(source)
        found = [""]
        for name in names:
            found = [path for above in found for path in self._below(above, name)]
        kept = [path for path in found if not path or not self._ignore.leaves_out(path)]
        if not kept:
            hidden = " (.dockerignore leaves it out)" if found else ""
            raise NotFound(f"{quote(source)} is not in the context{hidden}", what=source)
        return sorted(kept)

    def is_directory(self, path: str) -> bool:
        """Whether a path, or what it leads to, is a directory."""
        with self._place(path) as (directory, name):
            return stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)

    def open(self, path: str) -> int:
        """Open a file to read from."""
        with self._place(path) as (directory, name):
            return os.open(name, _FILE_FLAGS, dir_fd=directory)

    def _below(self, above: str, name: str) -> Iterator[str]:
        prefix = f"{above}/" if above else ""
        if not is_pattern(name):
            with contextlib.suppress(NotFound), self._place(f"{prefix}{name}"):
                yield f"{prefix}{name}"
            return
        wanted = re.compile(compile_name(name), re.DOTALL)
        # Something a pattern came upon, and nobody named, may lead anywhere.
        with contextlib.suppress(RequestError), self._place(above) as (directory, last):
            handle = _open_directory(directory, last)
            if handle is None:
                return
            try:
                names = os.listdir(handle)
            finally:
                os.close(handle)
            yield from (f"{prefix}{each}" for each in names if wanted.fullmatch(each))

    def walk(self, path: str) -> Iterator[Found]:
        """Go through a file or a whole directory, each directory before what is in it."""
        with self._place(path) as (directory, name):
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            yield Found("", status, "", directory, name)
            handle = _open_directory(directory, name)
            if handle is not None:
                yield from self._walk_below(handle, path)

    def _walk_below(self, top: int, path: str) -> Iterator[Found]:
        # A stack and not a recursion: a tree may be deeper than Python's own stack.
        stack = [(top, "", iter(sorted(os.listdir(top))))]
        try:
            while stack:
                directory, prefix, names = stack[-1]
                name = next(names, None)
                if name is None:
                    os.close(stack.pop()[0])
                    continue
                below = f"{prefix}{name}"
                whole = f"{path}/{below}" if path else below
                left_out = self._ignore.leaves_out(whole)
                if left_out and not self._ignore.has_exceptions:
                    continue
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                is_link = stat.S_ISLNK(status.st_mode)
                if not left_out:
                    target = os.readlink(name, dir_fd=directory) if is_link else ""
                    yield Found(below, status, target, directory, name)
                if stat.S_ISDIR(status.st_mode):
                    if len(stack) == _MAXIMUM_DEPTH:
                        raise RequestError(
                            f"{quote(whole)} is more than {_MAXIMUM_DEPTH} directories deep; "
                            "leave it out with .dockerignore"
                        )
                    handle = os.open(name, _DIRECTORY_FLAGS, dir_fd=directory)
                    stack.append((handle, f"{below}/", iter(sorted(os.listdir(handle)))))
        finally:
            for directory, _, _ in stack:
                os.close(directory)

    @contextlib.contextmanager
    def _place(self, path: str) -> Iterator[tuple[int, str]]:
        """Follow a path to (directory, name); links are followed as long as they stay inside."""
        pending = parts_of(path)
        trail = [os.dup(self._top)]
        links = 0
        name = "."
        try:
            while pending:
                name = pending.pop(0)
                if name == "..":
                    if len(trail) == 1:
                        raise _leads_out(path)
                    os.close(trail.pop())
                    name = "."
                    continue
                try:
                    status = os.stat(name, dir_fd=trail[-1], follow_symlinks=False)
                    if stat.S_ISLNK(status.st_mode):
                        links += 1
                        target = os.readlink(name, dir_fd=trail[-1])
                        if links > _MAXIMUM_LINKS or target.startswith("/"):
                            raise _leads_out(path)
                        pending = [*(each for each in target.split("/") if each), *pending]
                        name = "."
                    elif pending:
                        trail.append(os.open(name, _DIRECTORY_FLAGS, dir_fd=trail[-1]))
                        name = "."
                except (FileNotFoundError, NotADirectoryError):
                    raise NotFound(f"{quote(path)} is not in the context", what=path) from None
            yield trail[-1], name
        finally:
            for directory in trail:
                os.close(directory)


def read_ignore(directory: Path, dockerfile: Path) -> Ignore:
    """Read what stays behind. A list of the Dockerfile's own goes before that of the context."""
    own = dockerfile.with_name(f"{dockerfile.name}{_IGNORE_FILE}")
    for path in (own, directory / _IGNORE_FILE):
        try:
            with open(os.open(path, _FILE_FLAGS), "rb") as file:
                return parse_ignore(file.read(2**20 + 1))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    return NOTHING_IGNORED


def parts_of(path: str) -> list[str]:
    """Return the names of a path in the context; one that climbs out of it is refused."""
    names: list[str] = []
    for name in path.split("/"):
        if name == "..":
            if not names:
                raise _leads_out(path)
            names.pop()
        elif name not in ("", "."):
            names.append(name)
    return names


def _leads_out(path: str) -> RequestError:
    return RequestError(
        f"{quote(path)} leads out of the context; copy what is needed into it, "
        "or name a directory further up as the context"
    )


def _open_directory(directory: int, name: str) -> int | None:
    try:
        return os.open(name, _DIRECTORY_FLAGS, dir_fd=directory)
    except NotADirectoryError:
        return None
