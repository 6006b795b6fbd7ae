"""Executes system calls by number, each in a child of its own, and reports how they ended."""

from __future__ import annotations

import errno
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Where it runs, the prelude stands above this source.
    from cloister.verify.probes.prelude import in_child, syscall

HUNG_S = 2


def attempt(*calls: str) -> dict[str, str]:
    """Run calls written as "NUMBER" or "NUMBER:ARGUMENT,ARGUMENT"; without them, six times -1."""
    return {call: outcome(call) for call in calls}


def outcome(call: str) -> str:
    """Return "ok", the name of an error, or the name of the signal that ended the child."""
    number, _, text = call.partition(":")
    arguments = [int(part, 0) for part in text.split(",")] if text else [-1] * 6

    def act() -> None:
        # A call that blocks was let through, and must not block us.
        signal.alarm(HUNG_S)
        syscall(int(number, 0), *arguments)

    ended = in_child(act)
    if not ended.startswith("exit "):
        return ended
    code = int(ended.removeprefix("exit "))
    return errno.errorcode.get(code, ended) if code else "ok"
