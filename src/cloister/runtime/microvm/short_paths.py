"""Refuses trees with paths that the program which writes them onto a disk does not survive."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from cloister.errors import Unsupported
from cloister.runtime.microvm.given_up import current_work

# mke2fs 1.47 keeps the path of what it copies in a buffer that begins with 255 bytes and is
# doubled, and counts no byte for the end: a path of 2040 bytes writes past it, in a process that
# is root's, and sandboxes choose the names. Shorter ones end in what the allocator rounds up.
MOST_PATH_BYTES = 1000


def require_short_paths(directory: Path, hidden: Sequence[str] = ()) -> None:
    """Refuse a directory in which something lies too deep; links are not followed.

    What is `hidden` of it is not looked into: it comes onto no disk.
    """
    top = os.fsencode(directory)
    passed_over = {os.path.join(top, os.fsencode(path)) for path in hidden}
    above = [top]
    work = current_work()
    while above:
        work.require_wanted()
        with os.scandir(above.pop()) as entries:
            for entry in entries:
                if len(entry.path) - len(top) > MOST_PATH_BYTES:
                    raise Unsupported(
                        f"{directory} has a path of more than {MOST_PATH_BYTES} bytes, and no disk "
                        "for a machine is made of such; make it shorter"
                    )
                if entry.is_dir(follow_symlinks=False) and entry.path not in passed_over:
                    above.append(entry.path)
