"""Files of the host that are shown in a machine: their content goes in, and is written there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from cloister.errors import RequestError
from cloister.model import format_bytes
from cloister.policy import HostRoot, Policy
from cloister.runtime.ground import Ground
from cloister.runtime.microvm.template import sealed_letter
from cloister.runtime.namespace.rootfs import synthetic_files
from cloister.wire.codec import Writer

# Where the first process of the machine writes them.
_PLACE = "/given"
_GIVE, _GIVEN = 66, 67
_PART_BYTES = 256 * 1024
# They are in the memory of the machine's kernel, on a tmpfs of 16 MiB.
_MOST_BYTES = 8 * 2**20
_RESOLVER = "resolv.conf"


def with_way_out(ground: Ground, policy: Policy) -> Ground:
    """Return the ground of a sandbox with a way out: all know whom to ask for names."""
    files = ground.files
    if not isinstance(policy.root, HostRoot):
        # The host's programs come with an /etc of ours, in which it is said.
        files = (*files, (_RESOLVER, f"etc/{_RESOLVER}"))
    return dataclasses.replace(ground, has_egress=True, files=files)


def moved_inside(ground: Ground) -> tuple[Ground, tuple[str, ...]]:
    """Return the ground as the launcher in the machine finds it, and what is to be given there."""
    given = tuple(dict.fromkeys(path for path, _ in ground.files))
    files = tuple((f"{_PLACE}/{given.index(path)}", target) for path, target in ground.files)
    return dataclasses.replace(ground, files=files), given


def given_letters(given: Sequence[str]) -> list[bytes]:
    """Return the letters that have these files written, each from its beginning."""
    letters, total = [], 0
    for number, source in enumerate(given):
        content = _resolver() if source == _RESOLVER else Path(source).read_bytes()
        total += len(content)
        if total > _MOST_BYTES:
            raise RequestError(
                f"the files that are shown in a machine have more than {format_bytes(_MOST_BYTES)} "
                "together; trust fewer certificates, or name another runtime"
            )
        for at in range(0, max(len(content), 1), _PART_BYTES):
            head = Writer().u8(_GIVE).u8(number).flag(at > 0).done()
            letters.append(sealed_letter(head + content[at : at + _PART_BYTES]))
    return letters


def empty_letters(given: Sequence[str]) -> list[bytes]:
    """Return the letters that have them written with nothing in them, for whoever goes on."""
    heads = (Writer().u8(_GIVE).u8(number).flag(False).done() for number in range(len(given)))
    return [sealed_letter(head) for head in heads]


def announcing_letter(letters: Sequence[bytes]) -> bytes:
    """Return the letter after which so many others are read at the desk."""
    return sealed_letter(Writer().u8(_GIVEN).u8(len(letters)).done()) if letters else b""


def _resolver() -> bytes:
    return next(content for name, _, content in synthetic_files() if name == _RESOLVER)
