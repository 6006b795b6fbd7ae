"""A host directory or file shown inside a sandbox, and the text form of one."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cloister.errors import RequestError
from cloister.model.paths import encode_path, parse_target
from cloister.model.quote import quote


class MountMode(StrEnum):
    """How much of the host a mount gives: `copy` nothing, `read` its contents, `write` itself."""

    COPY = "copy"
    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True, init=False)
class Mount:
    """One host path shown at `target`; a copy unless the mode says otherwise.

    A relative `source` is relative to the working directory of the process that starts the
    sandbox; `load_policy` makes those of a policy file relative to that file instead.
    """

    source: Path
    target: str
    mode: MountMode

    def __init__(
        self,
        source: str | os.PathLike[str],
        target: str,
        mode: MountMode | str = MountMode.COPY,
    ) -> None:
        object.__setattr__(self, "source", parse_mount_source(source))
        object.__setattr__(self, "target", parse_target(target, "mount target"))
        object.__setattr__(self, "mode", parse_mount_mode(mode))


def parse_mount(text: str, mode: MountMode | None = None) -> Mount:
    """Return the mount written as SRC:DST[:MODE], or as SRC:DST where `mode` is given.

    Read from the right: DST holds no colon, SRC may hold any number of them.
    """
    if not isinstance(text, str):
        raise RequestError(f"mount is {quote(text)}; write it as SRC:DST or SRC:DST:MODE")
    rest, _, last = text.rpartition(":")
    if mode is None and rest and not last.startswith("/"):
        mode = parse_mount_mode(last)
        rest, _, last = rest.rpartition(":")
    if not rest or not last:
        raise RequestError(
            f"mount is {quote(text)}; write it as SRC:DST or SRC:DST:MODE, "
            "for example .:/workspace:read"
        )
    return Mount(rest, last, MountMode.COPY if mode is None else mode)


def parse_mount_mode(value: object) -> MountMode:
    """Return the mode of that name."""
    names = [mode.value for mode in MountMode]
    if isinstance(value, str) and value in names:
        return MountMode(value)
    near = difflib.get_close_matches(value, names, 1) if isinstance(value, str) else []
    meant = f'; did you mean "{near[0]}"?' if near else f"; the modes are {', '.join(names)}"
    raise RequestError(f"mount mode is {quote(value)}{meant}")


def parse_mount_source(value: object, field: str = "mount source") -> Path:
    """Return a host path, absolute or not; whether it exists is not asked here."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        raise RequestError(f"{field} is {quote(value)}; write a host path as text")
    encode_path(path, field)
    return Path(path)
