"""The server as one ASGI application: doors of other protocols first, then its own routes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from cloister.errors import NotFound
from cloister.ledger import Ledger, usual_keeping
from cloister.server.access import TRUSTED, Access
from cloister.server.endpoint import new_request_id, route_of, websocket_of
from cloister.server.fleet import Fleet
from cloister.server.observation import Observation
from cloister.server.open_routes import open_routes
from cloister.server.problems import problem_response
from cloister.server.records import Records
from cloister.server.routes import conversations, endpoints
from cloister.server.settings import Settings
from cloister.server.tokens import Tokens
from cloister.server.traces import open_traces
from cloister.server.while_valid import AnswerWhileValid
from cloister.store.place import state_directory


class Door(Protocol):
    """Another protocol in front of the same sandboxes, which takes what it knows to be its own.

    It finds out who calls with `Access`, and sandboxes with `Fleet`, as the routes here do.
    """

    def takes(self, scope: Scope) -> bool:
        """Whether a request is for this door, by its host, its path or its headers."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer it."""


@dataclass(frozen=True, slots=True)
class House:
    """Everything that doors share: the sandboxes, who may ask, what is noticed."""

    fleet: Fleet
    access: Access
    observation: Observation


class App:
    """Answers every request of every listener."""

    def __init__(self, house: House, doors: Sequence[Door] = ()) -> None:
        self.house = house
        self.doors: list[Door] = [*doors]
        routes = [route_of(each, house.access, house.observation) for each in endpoints()]
        routes += [websocket_of(each, house.access, house.observation) for each in conversations()]
        routes += open_routes(house.access, house.observation)
        self._router = Router(routes, redirect_slashes=False, default=_not_found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = AnswerWhileValid(self.house.access.tokens, scope, send)
        try:
            for door in self.doors:
                if door.takes(scope):
                    with self._traced(door, scope):
                        await door(scope, receive, answering.send)
                    return
            await self._router(scope, receive, answering.send)
        finally:
            answering.close()
            self.house.access.release(scope)

    def _traced(self, door: Door, scope: Scope) -> AbstractContextManager[object]:
        # By its door: what a path of another protocol holds is its client's to choose.
        method = str(scope.get("method", "WEBSOCKET"))
        room = type(door).__module__.split(".")[1]
        return self.house.observation.traces.request(method, room, Headers(scope=scope))

    def entrance(self, *, trusted: bool) -> ASGIApp:
        """Return the application for one listener; whoever comes by a trusted one is the owner."""

        async def enter(scope: Scope, receive: Receive, send: Send) -> None:
            scope[TRUSTED] = trusted
            await self(scope, receive, send)

        return enter


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope) if scope["type"] == "http" else None
    path = "" if request is None else request.url.path
    response: Response = problem_response(
        NotFound(f"nothing is at {path[:200]}", what=path[:200]), new_request_id()
    )
    if request is None:
        await send({"type": "websocket.close", "code": 4404})
        return
    await response(scope, receive, send)


@contextlib.asynccontextmanager
async def open_house(settings: Settings) -> AsyncIterator[House]:
    """Open the records and the fleet, and end everything with the block."""
    records = Records.open(settings.database)
    try:
        ledger = await asyncio.to_thread(
            Ledger, state_directory(), ledger_name(settings), keeping=usual_keeping()
        )
        try:
            async with open_traces(settings.traces) as traces:
                fleet = Fleet(records, settings)
                await fleet.open()
                try:
                    observation = Observation(ledger, traces)
                    yield House(fleet, Access(fleet, Tokens(records)), observation)
                finally:
                    await fleet.close()
        finally:
            await asyncio.to_thread(ledger.close)
    finally:
        records.close()


def ledger_name(settings: Settings) -> str:
    """Return what the server's own ledger is called; no two servers have one socket."""
    return f"server-{hashlib.sha256(str(settings.socket).encode()).hexdigest()[:12]}"
