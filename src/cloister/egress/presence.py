"""Waits for something on behalf of a program, for as long as the program is there to want it."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from cloister.egress.refusal import Refusal

_Value = TypeVar("_Value")
_GONE = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


async def while_present(
    sock: socket.socket, work: Coroutine[Any, Any, _Value], rule: str = "default"
) -> _Value:
    """Return what comes of `work`; it is cancelled, and refused, once the other end hangs up.

    `rule` is the one by which it waits.
    """
    doing = asyncio.ensure_future(work)
    async with _hang_up(sock) as gone:
        try:
            await asyncio.wait((doing, gone), return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
        finally:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)
    raise Refusal("the program went away while it was waited for", rule)


@contextlib.asynccontextmanager
async def _hang_up(sock: socket.socket) -> AsyncIterator[asyncio.Future[None]]:
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[None] = loop.create_future()
    # Of its own: to the loop's, bytes that are not to be read yet would be news without end.
    with select.epoll() as watching:
        watching.register(sock, _GONE)
        loop.add_reader(watching, _note, gone)
        try:
            yield gone
        finally:
            loop.remove_reader(watching)
            gone.cancel()


def _note(gone: asyncio.Future[None]) -> None:
    if not gone.done():
        gone.set_result(None)
