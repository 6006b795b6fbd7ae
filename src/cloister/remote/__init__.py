"""A small client of a Cloister server: HTTP and WebSocket, by TCP or a unix socket."""

from __future__ import annotations

from cloister.remote.client import Client
from cloister.remote.place import Place, server_place

__all__ = ["Client", "Place", "server_place"]
