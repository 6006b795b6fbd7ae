"""Standard input that is known from the start, written while the program runs."""

from __future__ import annotations

from cloister.errors import GuestGone
from cloister.sandbox.process import Process


async def feed(process: Process, data: bytes) -> None:
    """Write standard input; a program that does not read all of it is not an error."""
    if process.stdin is None:
        return
    try:
        await process.stdin.write(data)
    except GuestGone:
        return
    process.stdin.close()
