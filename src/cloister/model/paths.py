"""Read a path that is meant inside a sandbox, where a sloppy one is refused rather than mended."""

from __future__ import annotations

import os
import posixpath

from cloister.errors import RequestError
from cloister.model.quote import quote

# The kernel's PATH_MAX and NAME_MAX, the first without its closing zero byte.
MAXIMUM_PATH_BYTES = 4095
MAXIMUM_NAME_BYTES = 255

# Whole trees the guest builds itself; anything mounted there could undo a wall.
_RESERVED_TREES = ("/proc", "/dev", "/sys")
# Built for each sandbox; covering all of it would bring the host's accounts inside.
_RESERVED_PATHS = ("/", "/etc")


def parse_absolute_path(value: object, field: str) -> str:
    """Return an absolute path as text; text the kernel could not take is refused."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        raise RequestError(f"{field} is {quote(value)}; write an absolute path as text")
    encoded = encode_path(path, field)
    if not path.startswith("/"):
        raise RequestError(
            f"{field} is {quote(path)}; write an absolute path, one beginning with /"
        )
    if len(encoded) > MAXIMUM_PATH_BYTES:
        raise RequestError(
            f"{field} is a path of {len(encoded)} bytes; the most is {MAXIMUM_PATH_BYTES}"
        )
    if max(len(name) for name in encoded.split(b"/")) > MAXIMUM_NAME_BYTES:
        raise RequestError(
            f"{field} is {quote(path)}; one name in a path may have {MAXIMUM_NAME_BYTES} bytes"
        )
    return path


def parse_target(value: object, field: str) -> str:
    """Return the place of a mount inside: absolute, normalised and not ours."""
    path = parse_absolute_path(value, field)
    # posixpath keeps a double leading slash, which Linux reads as one.
    normal = "/" + posixpath.normpath(path).lstrip("/")
    if ".." in path.split("/"):
        raise RequestError(f'{field} is {quote(path)}; write it without ".."')
    if path != normal:
        raise RequestError(f"{field} is {quote(path)}; write it as {quote(normal)}")
    if path in _RESERVED_PATHS or any(
        path == tree or path.startswith(tree + "/") for tree in _RESERVED_TREES
    ):
        raise RequestError(
            f"{field} is {quote(path)}, which every sandbox has of its own; "
            "choose a place other than /, /etc and those in /proc, /dev and /sys"
        )
    return path


def encode_path(path: str, field: str) -> bytes:
    """Return the bytes of a path; names that are not UTF-8 travel as surrogate escapes."""
    if not path:
        raise RequestError(f"{field} is empty; write a path")
    if "\0" in path:
        raise RequestError(f"{field} is {quote(path)}; a path cannot hold a zero byte")
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{field} is {quote(path)}; character {error.start} has no bytes in a file name"
        ) from error
