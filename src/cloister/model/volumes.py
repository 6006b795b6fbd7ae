"""A named volume shown inside a sandbox, the text form of one, and the names that are kept."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from enum import StrEnum

from cloister.errors import RequestError
from cloister.model.paths import parse_target
from cloister.model.quote import quote

# A first letter or digit keeps "." and ".." out of paths, and "-" out of command lines.
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")


class VolumeMode(StrEnum):
    """How much of a volume is given: `read` its contents, `write` itself."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True, init=False)
class VolumeMount:
    """The volume of that name, shown at `target`; to be written to unless the mode is `read`."""

    name: str
    target: str
    mode: VolumeMode

    def __init__(self, name: str, target: str, mode: VolumeMode | str = VolumeMode.WRITE) -> None:
        object.__setattr__(self, "name", parse_name(name, "volume name"))
        object.__setattr__(self, "target", parse_target(target, "volume target"))
        object.__setattr__(self, "mode", parse_volume_mode(mode))


def parse_volume(text: str) -> VolumeMount:
    """Return the volume mount written as NAME:/target or NAME:/target:MODE.

    The target of this form holds no colon.
    """
    parts = text.split(":", 2) if isinstance(text, str) else []
    if len(parts) < 2:
        raise RequestError(
            f"volume is {quote(text)}; write it as NAME:/target or NAME:/target:MODE, "
            "for example cache:/root/.cache:read"
        )
    return VolumeMount(*parts)


def parse_name(value: object, what: str) -> str:
    """Return the name of something kept, such as a volume; `what` says in errors of what."""
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise RequestError(
            f'{what} is {quote(value)}; write 1 to 63 of a-z, 0-9, "_", "." and "-", '
            "a letter or digit first"
        )
    return value


def parse_volume_mode(value: object) -> VolumeMode:
    """Return the mode of that name."""
    names = [mode.value for mode in VolumeMode]
    if isinstance(value, str) and value in names:
        return VolumeMode(value)
    near = difflib.get_close_matches(value, names, 1) if isinstance(value, str) else []
    meant = f'; did you mean "{near[0]}"?' if near else f"; the modes are {', '.join(names)}"
    raise RequestError(f"volume mode is {quote(value)}{meant}")
