"""What anybody may ask without a token: whether the server is well, and what its API is."""

from __future__ import annotations

import time
from dataclasses import replace
from importlib.metadata import version

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from cloister.errors import TokenRefused
from cloister.server.access import Access
from cloister.server.call import Call
from cloister.server.endpoint import new_request_id, refuse
from cloister.server.metrics import render_metrics
from cloister.server.observation import Linked, Observation
from cloister.server.openapi import describe_api, describe_page
from cloister.server.port_proxy import carry_messages, carry_request, require_address
from cloister.server.problems import problem_response
from cloister.server.routes import conversations, endpoints
from cloister.server.tokens import OWNER_CALLER
from cloister.server.while_valid import LET_IN_BY, WhileValid

_SWITCHED = 101
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
_PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def open_routes(access: Access, observation: Observation) -> list[BaseRoute]:
    """Return the routes that are not under /v1."""
    fleet = access.fleet
    document = describe_api(endpoints(), conversations(), version("cloister"))
    encoded = msgspec.json.encode(document)
    page = describe_page(document)

    async def healthz(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        if fleet.is_draining:
            return PlainTextResponse("draining\n", 503)
        try:
            await fleet.records.probe()
        except Exception as error:
            return problem_response(error, new_request_id())
        return PlainTextResponse("ready\n")

    async def metrics(request: Request) -> Response:
        try:
            caller = await access.caller(request)
            caller.require_admin()
        except Exception as error:
            return problem_response(error, new_request_id())
        text = render_metrics(fleet, observation)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(request: Request) -> Response:
        return Response(encoded, media_type="application/json")

    async def docs(request: Request) -> Response:
        return HTMLResponse(page, headers={"content-security-policy": _PAGE_POLICY})

    async def linked(request: Request) -> Response:
        id, begun = new_request_id(), time.monotonic()
        try:
            to = await fleet.links.open(request.path_params["link"], access.tokens)
        except Exception as error:
            return problem_response(error, id)
        request.scope[LET_IN_BY] = to.token
        # Whoever has the link acts for its tenant, at this port and nowhere else.
        caller = replace(OWNER_CALLER, tenant=to.tenant, token=to.token)
        try:
            access.hold(request.scope, to.tenant, visits=True)
            body = Call(request, caller, fleet, id).chunks(fleet.settings.upload_bytes)
            resident = fleet.find(to.tenant, to.sandbox)
            await fleet.rouse(resident)
            with WhileValid(access.tokens, caller):
                response = await carry_request(resident.sandbox, to.port, request, body)
        except Exception as error:
            response = problem_response(error, id)
        whose = Linked(to.tenant, to.sandbox)
        observation.linked(request.method, request, whose, response.status_code, begun, id)
        return response

    async def linked_socket(websocket: WebSocket) -> None:
        # The link is what lets in, so a page of any origin that knows it may come: the one of the
        # link itself has none, because its pages are sandboxed.
        id, begun = new_request_id(), time.monotonic()
        try:
            to = await fleet.links.open(websocket.path_params["link"], access.tokens)
        except Exception as error:
            await websocket.send_denial_response(problem_response(error, id))
            return
        status = _SWITCHED
        try:
            access.hold(websocket.scope, to.tenant, visits=True)
            resident = fleet.find(to.tenant, to.sandbox)
            await fleet.rouse(resident)
            require_address(websocket.scope)
        except Exception as error:
            refusal = problem_response(error, id)
            status = refusal.status_code
            await websocket.send_denial_response(refusal)
        else:
            caller = replace(OWNER_CALLER, tenant=to.tenant, token=to.token)
            try:
                with WhileValid(access.tokens, caller):
                    await carry_messages(resident.sandbox, to.port, websocket)
            except TokenRefused as error:
                await refuse(websocket, error, id)
        finally:
            whose = Linked(to.tenant, to.sandbox)
            observation.linked("WEBSOCKET", websocket, whose, status, begun, id)

    return [
        Route("/links/{link}/{rest:path}", linked, methods=_METHODS),
        WebSocketRoute("/links/{link}/{rest:path}", linked_socket),
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route("/metrics", metrics),
        Route("/openapi.json", openapi),
        Route("/docs", docs),
    ]
