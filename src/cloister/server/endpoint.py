"""One endpoint as a value: its place, who may use it, what it takes and gives, what it does."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from cloister.server.access import Access
from cloister.server.attention import attended, is_done_inside
from cloister.server.call import Call, answer
from cloister.server.observation import Observation
from cloister.server.problems import problem_of, problem_response, status_of
from cloister.server.tokens import Caller
from cloister.server.while_valid import WhileValid

Act = Callable[[Call], Awaitable[Any]]
Converse = Callable[[Call, WebSocket], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What is done at one method and path. `takes` and `gives` are types, for OpenAPI too."""

    method: str
    path: str
    scope: str
    act: Act
    summary: str
    takes: type | None = None
    query: type | None = None
    gives: Any = None
    status: int = 200
    # Where bodies are bytes and not JSON.
    takes_bytes: bool = False
    gives_bytes: bool = False
    # What it answers beside its status and errors, and whether the status is somebody else's.
    further: tuple[tuple[int, str], ...] = ()
    gives_any_status: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """A WebSocket at one path."""

    path: str
    scope: str
    converse: Converse
    summary: str


def route_of(endpoint: Endpoint, access: Access, observation: Observation) -> BaseRoute:
    """Return the route of an endpoint: who calls is found out before anything else is done."""

    is_inside = is_done_inside(endpoint.path)

    async def serve(request: Request) -> Response:
        id, begun = new_request_id(), time.monotonic()
        caller = None
        with observation.traces.request(endpoint.method, endpoint.path, request.headers) as traced:
            try:
                caller = await access.caller(request)
                caller.require(endpoint.scope)
                call = Call(request, caller, access.fleet, id)
                with WhileValid(access.tokens, caller):
                    async with attended(
                        access.fleet, caller.tenant, _sandbox(request, caller, is_inside)
                    ):
                        outcome = await endpoint.act(call)
                response = (
                    outcome if isinstance(outcome, Response) else answer(outcome, endpoint.status)
                )
            except asyncio.CancelledError:
                raise
            except Exception as error:
                response = problem_response(error, id)
            tenant = None if caller is None else caller.tenant
            traced.answered(response.status_code, id, tenant, request.path_params.get("id"))
        response.headers["x-request-id"] = id
        observation.request(endpoint, request, caller, response.status_code, begun, id)
        return response

    return Route(endpoint.path, serve, methods=[endpoint.method])


def websocket_of(one: Conversation, access: Access, observation: Observation) -> BaseRoute:
    """Return the route of a WebSocket."""

    is_inside = is_done_inside(one.path)

    async def serve(websocket: WebSocket) -> None:
        id, begun = new_request_id(), time.monotonic()
        caller, status = None, 101
        with observation.traces.request("WEBSOCKET", one.path, websocket.headers) as traced:
            try:
                caller = await access.caller(websocket)
                caller.require(one.scope)
                with WhileValid(access.tokens, caller):
                    async with attended(
                        access.fleet, caller.tenant, _sandbox(websocket, caller, is_inside)
                    ):
                        await one.converse(Call(websocket, caller, access.fleet, id), websocket)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                status = status_of(error)
                await refuse(websocket, error, id)
            finally:
                tenant = None if caller is None else caller.tenant
                traced.answered(status, id, tenant, websocket.path_params.get("id"))
                observation.websocket(one, websocket, caller, status, begun, id)

    return WebSocketRoute(one.path, serve)


def _sandbox(connection: HTTPConnection, caller: Caller, is_inside: bool) -> str | None:
    """Return the sandbox that is to be awake for a request, if the caller may ask it anything."""
    id = str(connection.path_params["id"]) if is_inside else None
    return id if caller.sandbox in (None, id) else None


async def refuse(websocket: WebSocket, error: Exception, id: str) -> None:
    """Say why, as far as the client still listens."""
    if websocket.application_state.name == "CONNECTING":
        # Before the handshake it is an answer like any other.
        await websocket.send_denial_response(problem_response(error, id))
    elif websocket.application_state.name == "CONNECTED":
        problem = problem_of(error, id)
        try:
            await websocket.close(4000 + problem.status, problem.detail[:120])
        except (RuntimeError, OSError):
            # The client has gone.
            return


def new_request_id() -> str:
    """Return what one request is called in logs and answers."""
    return f"rq_{secrets.token_hex(8)}"
