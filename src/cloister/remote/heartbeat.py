"""Tells a server that this process lives, so that what it started there may go on."""

from __future__ import annotations

import http.client
import json
import logging
import os
import socket
import ssl
import threading
import weakref
from typing import Protocol

from cloister.remote.place import Place

# A sandbox of a client that says nothing for so long is ended by its server.
LEASE_S = 30.0
_BEAT_S = LEASE_S / 3
_ANSWER_S = 10.0

log = logging.getLogger("cloister.remote")

_lock = threading.Lock()
_beating: dict[Place, Heartbeat] = {}


class Held(Protocol):
    """What is held at the server for this process."""

    @property
    def id(self) -> str:
        """What the server calls it."""


class Heartbeat:
    """One thread for each server: a loop that is busy for a minute must not cost its sandboxes."""

    def __init__(self, place: Place) -> None:
        self._place = place
        # Whoever forgets a sandbox without ending it does not hold it either.
        self._held: weakref.WeakSet[Held] = weakref.WeakSet()
        self._change = threading.Condition(_lock)
        self._thread: threading.Thread | None = None

    def add(self, one: Held) -> None:
        """Speak for it from now on."""
        with self._change:
            self._held.add(one)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="cloister-heartbeat", daemon=True
                )
                self._thread.start()

    def remove(self, one: Held) -> None:
        """Speak for it no more."""
        with self._change:
            self._held.discard(one)
            self._change.notify()

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: not self._held, _BEAT_S)
                ids = [one.id for one in self._held]
                if not ids:
                    self._thread = None
                    return
            try:
                self._beat(ids)
            except (OSError, http.client.HTTPException) as error:
                # The next beat may reach it; what was lost is said to whoever uses it.
                log.debug("the server did not take a heartbeat: %s", error)

    def _beat(self, ids: list[str]) -> None:
        connection = _connection(self._place)
        try:
            headers = {"content-type": "application/json", "host": self._place.authority}
            if self._place.token is not None:
                headers["authorization"] = f"Bearer {self._place.token}"
            body = json.dumps({"sandboxes": ids})
            connection.request("POST", "/v1/leases", body, headers)
            connection.getresponse().read()
        finally:
            connection.close()


def heartbeat(place: Place) -> Heartbeat:
    """Return what speaks to a server for this process."""
    with _lock:
        return _beating.setdefault(place, Heartbeat(place))


class _UnixConnection(http.client.HTTPConnection):
    """HTTP by a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_ANSWER_S)
        self._path = path

    def connect(self) -> None:
        """Connect to the path."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_ANSWER_S)
        self.sock.connect(self._path)


def _connection(place: Place) -> http.client.HTTPConnection:
    if place.socket is not None:
        return _UnixConnection(place.socket)
    if place.is_tls:
        trusted = ssl.create_default_context()
        return http.client.HTTPSConnection(
            place.host, place.port, timeout=_ANSWER_S, context=trusted
        )
    return http.client.HTTPConnection(place.host, place.port, timeout=_ANSWER_S)


def _forget() -> None:
    """In a forked child: the parent speaks for what is its own."""
    global _lock
    _lock = threading.Lock()
    _beating.clear()


os.register_at_fork(after_in_child=_forget)
