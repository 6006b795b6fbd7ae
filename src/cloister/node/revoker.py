"""Has what this process minted revoked when it is killed: by a small process that outlives it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

# Nothing of ours is loaded until it is needed. A word is the owner's that all is revoked; an end
# without one is its death, whose locks are open once the kernel says so by the descriptor.
_WAIT = """
import os, select, sys
owner, place = int(sys.argv[1]), sys.argv[2]
try:
    gone = os.pidfd_open(owner)
except ProcessLookupError:
    gone = None
if gone is not None and os.getppid() == owner:
    if os.read(0, 1):
        sys.exit()
    select.select([gone], [], [])
sys.path[:0] = sys.argv[3:]
import asyncio, pathlib
from cloister.node.credentials import revoke_abandoned
asyncio.run(revoke_abandoned(pathlib.Path(place)))
"""


class Revoker:
    """One process for all credentials of this one; there is none while there are none of them."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._count = 0

    def begin(self, place: Path) -> None:
        """There is one credential more, written down in a directory."""
        self._owner = os.getpid()
        self._count += 1
        if self._process is not None and self._process.poll() is None:
            return
        paths = [path for path in sys.path if path]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WAIT, str(os.getpid()), str(place), *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            # Whoever kills our whole group does not mean this one.
            start_new_session=True,
        )

    def forget_in_child(self) -> None:
        """After a fork: what there was is the parent's, and its end must be heard."""
        process, self._process, self._count = self._process, None, 0
        if process is not None and process.stdin is not None:
            process.stdin.close()

    def end(self) -> None:
        """One of them is revoked."""
        if self._owner != os.getpid():
            return
        self._count -= 1
        process = self._process
        if self._count > 0 or process is None:
            return
        self._process = None
        if process.stdin is not None:
            # One that was killed has nobody to tell: what is left is the next one's who mints.
            with contextlib.suppress(BrokenPipeError), process.stdin as end:
                end.write(b"x")
        threading.Thread(target=process.wait, daemon=True).start()


REVOKER = Revoker()
