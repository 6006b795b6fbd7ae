"""Serves many clients over HTTP on this machine: with a token, and to no web page unless named."""

from __future__ import annotations

import hmac
import socket
import sys
from collections.abc import Sequence

import uvicorn
from mcp.server import Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cloister.errors import RequestError
from cloister.mcp.desks import IDLE_S, SESSION_HEADER, Desks
from cloister.mcp.listening import Address

PATH = "/mcp"
_MAXIMUM_BODY_BYTES = 24 * 2**20
_MAXIMUM_SESSIONS = 256
_MAXIMUM_REQUESTS = 1024


async def serve_http(
    server: Server[Desks], desks: Desks, address: Address, token: str, origins: Sequence[str]
) -> None:
    """Serve until a signal; say on standard error where."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        listening = socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        raise RequestError(
            f"cannot listen on {address.host}:{address.port}: {error.strerror}; choose another port"
        ) from error
    port = listening.getsockname()[1]
    hosts = [f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")]
    # A page of this very server is let in: there is none but what a client of it makes.
    origins = [*origins, *(f"http://{host}" for host in hosts)]
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=_MAXIMUM_BODY_BYTES,
        max_sessions=_MAXIMUM_SESSIONS,
        session_idle_timeout=IDLE_S,
        transport_security=TransportSecuritySettings(
            enable_dns_rebinding_protection=True,
            allowed_hosts=hosts,
            allowed_origins=origins,
        ),
    )
    config = uvicorn.Config(
        Gate(app, desks, token, hosts, origins),
        log_level="warning",
        access_log=False,
        lifespan="on",
        limit_concurrency=_MAXIMUM_REQUESTS,
        timeout_graceful_shutdown=2,
        server_header=False,
    )
    shown = f"[{address.host}]" if family is socket.AF_INET6 else address.host
    print(f"cloister mcp: listening on http://{shown}:{port}{PATH}", file=sys.stderr, flush=True)
    await uvicorn.Server(config).serve(sockets=[listening])


class Gate:
    """Before everything else: who asks, under which name, from which page, for which session."""

    def __init__(
        self, app: ASGIApp, desks: Desks, token: str, hosts: Sequence[str], origins: Sequence[str]
    ) -> None:
        self._app = app
        self._desks = desks
        self._expected = f"Bearer {token}".encode()
        self._hosts = frozenset(hosts)
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refuse(headers)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        session = headers.get(SESSION_HEADER)
        if session is None:
            await self._app(scope, receive, send)
            return
        stream = scope["method"] == "GET"
        entered = self._desks.enter(session, stream=stream, is_new=False)

        async def watched(message: Message) -> None:
            nonlocal entered
            # Whether there is such a session is the SDK's to know: a guess makes no desk.
            if not entered and message["type"] == "http.response.start" and message["status"] < 300:
                entered = self._desks.enter(session, stream=stream, is_new=True)
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            if entered:
                self._desks.leave(session)
                if scope["method"] == "DELETE":
                    self._desks.end(session)

    def _refuse(self, headers: Headers) -> PlainTextResponse | None:
        if headers.get("host", "") not in self._hosts:
            return PlainTextResponse("this server is not known by that name\n", 421)
        origin = headers.get("origin")
        if origin is not None and origin not in self._origins:
            return PlainTextResponse("web pages of that origin are not let in; see --origin\n", 403)
        given = headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, self._expected):
            return PlainTextResponse(
                "a token is needed: Authorization: Bearer ...\n",
                401,
                {"WWW-Authenticate": "Bearer"},
            )
        return None
