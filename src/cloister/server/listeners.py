"""Listens on a unix socket and, if asked to, on TCP; ends in order when told to."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from cloister.errors import Busy, HostError
from cloister.model import quote
from cloister.server.app import App
from cloister.server.cut_off import closable
from cloister.server.one_write import OneWrite
from cloister.server.settings import Settings

_CREDENTIALS = struct.Struct("3i")
# Headers of a request, together.
_MOST_HEADER_BYTES = 64 * 1024
# A client that reads slowly is given more time than one that sends slowly: it may be a pipe.
_READ_PATIENCE = 10


class Patient(H11Protocol):
    """HTTP for clients that need not be friendly: those that only connect are not waited for."""

    wait_s = 30.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close what sends no whole request for too long, and what another user opened."""
        super().connection_made(transport)
        self._ends = OneWrite(transport, self.loop)
        self.transport = cast("asyncio.Transport", self._ends)
        self.app = closable(self.app, self._ends)
        self._waiting: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._wait()
        end = transport.get_extra_info("socket")
        if end is not None and end.family == socket.AF_UNIX and not _is_ours(end):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came; a request, the first or a later one, must be whole in time."""
        super().data_received(data)
        # What came may have made it a WebSocket, and the connection another protocol's.
        is_left = self.transport.get_protocol() is not self
        if is_left or self.transport.is_closing() or self._is_answering:
            self._stop_waiting()
        else:
            self._wait()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Leave the connection to the protocol of WebSockets, which has a clock of its own."""
        self._stop_waiting()
        self.transport = self._ends.transport
        super().handle_websocket_upgrade(event)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that nobody uses, also if its client reads no answer."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(self.wait_s, self.transport.abort)

    def pause_writing(self) -> None:
        """Wait for a client that does not read, but not for ever."""
        super().pause_writing()
        if self._writing is None:
            self._writing = self.loop.call_later(_READ_PATIENCE * self.wait_s, self._abandon)

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        # Not anew for each byte: one who sends a byte at a time is slow too.
        if self._waiting is None:
            self._waiting = self.loop.call_later(self.wait_s, self._abandon)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _abandon(self) -> None:
        self.transport.abort()


def _is_ours(end: Any) -> bool:
    found = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(found)
    return uid in (0, os.geteuid())


class _Quiet(uvicorn.Server):
    """A uvicorn server that leaves signals to whoever started it, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self.listening.set()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve without taking the signals of the process."""
        await self._serve(sockets)


async def listen(app: App, settings: Settings, on_ready: Callable[[list[str]], None]) -> None:
    """Serve until SIGTERM or SIGINT; then answer what has begun, for `drain_s` at most."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[None] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _settle, told)
    ends = [(open_unix(settings.socket), True)]
    places = [f"unix:{settings.socket}"]
    try:
        if settings.listen is not None:
            ends.append((_open_tcp(settings.listen), False))
            scheme = "http" if settings.certificate is None else "https"
            host, _, _ = settings.listen.rpartition(":")
            places.append(f"{scheme}://{host}:{ends[-1][0].getsockname()[1]}")
        servers = [_server(app, settings, trusted=trusted) for _, trusted in ends]
        serving = [
            asyncio.create_task(server.serve([end]))
            for server, (end, _) in zip(servers, ends, strict=True)
        ]
        for server in servers:
            await server.listening.wait()
        on_ready(places)
        await asyncio.wait({told, *serving}, return_when=asyncio.FIRST_COMPLETED)
        app.house.fleet.drain()
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*serving)
    finally:
        for end, _ in ends:
            end.close()
        settings.socket.unlink(missing_ok=True)


def _settle(told: asyncio.Future[None]) -> None:
    if not told.done():
        told.set_result(None)


def _server(app: App, settings: Settings, *, trusted: bool) -> _Quiet:
    Patient.wait_s = settings.slow_client_s
    config = uvicorn.Config(
        app.entrance(trusted=trusted),
        http=Patient,
        ws="websockets-sansio",
        ws_max_size=2**20,
        ws_ping_interval=20.0,
        ws_ping_timeout=20.0,
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        limit_concurrency=settings.most_connections,
        h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, int(settings.drain_s)),
        ssl_certfile=None if trusted or settings.certificate is None else settings.certificate,
        ssl_keyfile=None if trusted or settings.key is None else settings.key,
    )
    return _Quiet(config)


def open_unix(path: Path) -> socket.socket:
    """Listen at a path that only this user can connect to."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_stale(path)
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        end.bind(str(path))
    except OSError as error:
        end.close()
        raise HostError(f"cannot listen at {quote(str(path))}: {error.strerror}") from error
    finally:
        os.umask(before)
    end.listen(1024)
    return end


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that was killed; refuse while one answers there."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise HostError(f"{quote(str(path))} is there and is no socket; name another")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        try:
            trial.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    raise Busy(f"another server listens at {quote(str(path))}", holder="unknown")


def _open_tcp(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        # With its protocol named: asyncio sends small answers at once only where it is.
        end = socket.socket(found[0], socket.SOCK_STREAM, socket.IPPROTO_TCP)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        end.bind(found[4])
        end.listen(1024)
    except OSError as error:
        raise HostError(f"cannot listen at {quote(listen)}: {error.strerror}") from error
    return end
