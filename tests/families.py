"""Holds on to the processes below one, so that their end can be waited for whoever comes after."""

from __future__ import annotations

import contextlib
import os

from cloister.verify.resources import descendants


def hold_family(ancestor: int) -> dict[int, int]:
    """Return descriptors of the processes below one, by their numbers; the caller closes them.

    One that ends while it is looked at is not among them. A number that was given to somebody else
    in between is found out by a second look: hosts have but 32768 of them.
    """
    held: dict[int, int] = {}
    for pid in descendants(ancestor):
        with contextlib.suppress(ProcessLookupError):
            held[pid] = os.pidfd_open(pid)
    still = set(descendants(ancestor))
    for pid in held.keys() - still:
        os.close(held.pop(pid))
    return held
