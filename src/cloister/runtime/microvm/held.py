"""Descriptors that are closed where a block ends."""

from __future__ import annotations

import os
from contextlib import ExitStack


def hold(held: ExitStack, fd: int) -> int:
    """Return a descriptor that is closed with `held`."""
    held.callback(os.close, fd)
    return fd
