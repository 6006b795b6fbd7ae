"""Room for a sandbox whose memory is being saved: what is written of it lies in memory too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

# In the order in which they are raised: no kernel takes the second above the first.
_LIMITS = ("memory.memsw.limit_in_bytes", "memory.limit_in_bytes", "memory.max")
_BESIDE_BYTES = 64 * 2**20


@contextlib.contextmanager
def room_to_save(groups: Iterable[Path]) -> Iterator[None]:
    """Double the limits of memory for as long as this; the pages of the copy count in them."""
    before: list[tuple[Path, str]] = []
    for path in [group / name for group in groups for name in _LIMITS]:
        # Not every hierarchy has each of them; without the room the saving says that it failed.
        with contextlib.suppress(OSError):
            text = path.read_text().strip()
            if text.isdecimal():
                path.write_text(str(2 * int(text) + _BESIDE_BYTES))
                before.append((path, text))
    try:
        yield
    except BaseException:
        for path, text in reversed(before):
            # It may have ended meanwhile, and its groups with it.
            with contextlib.suppress(OSError):
                path.write_text(text)
        raise
