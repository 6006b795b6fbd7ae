"""Cutting an answer off: how a client hears that what it was told has no end."""

from __future__ import annotations

import asyncio
import socket
import struct

from starlette.types import ASGIApp, Receive, Scope, Send

from cloister.server.one_write import OneWrite

# How the server offers it to applications: a function that closes the connection.
_EXTENSION = "cloister.close"


def closable(app: ASGIApp, ends: OneWrite) -> ASGIApp:
    """Return the application, able to close the connection of its requests."""

    async def offering(scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("extensions", {})[_EXTENSION] = lambda: _reset(ends.transport)
        await app(scope, receive, ends.sending(send))

    return offering


def _reset(transport: asyncio.Transport) -> None:
    # By a reset: an orderly end in the middle of a body is read as a mistake of the server's.
    end = transport.get_extra_info("socket")
    if end is not None and end.family != socket.AF_UNIX:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def cut_off(scope: Scope, receive: Receive) -> None:
    """Break the connection; what was sent at the very last may not arrive."""
    close_connection(scope)
    while (await receive())["type"] != "http.disconnect":
        continue


def close_connection(scope: Scope) -> None:
    """Break the connection of a request, which then has no client any more."""
    close = scope.get("extensions", {}).get(_EXTENSION)
    if close is None:
        raise RuntimeError("the server of this application does not close connections for it")
    close()
