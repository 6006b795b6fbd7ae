"""The door for E2B's clients: whether a request is theirs, and what part of it is meant."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cloister.e2b import control, envd, volume_content
from cloister.e2b.answers import answering, error_answer, json_answer
from cloister.e2b.asleep import Asleep
from cloister.e2b.box import Box, own_id, public_id
from cloister.e2b.boxes import Boxes, read_key
from cloister.e2b.build_routes import BUILD_ROUTES, put_file
from cloister.e2b.builds import Builds
from cloister.e2b.control import Desk
from cloister.e2b.derived import Derived
from cloister.e2b.heard import hear, hear_resident, tell
from cloister.e2b.interpreter import routes as interpreter
from cloister.e2b.network_routes import NETWORK_ROUTES
from cloister.e2b.pausing import resume_for_traffic
from cloister.e2b.ports import bad_gateway, passed_headers, proxy, target_of
from cloister.e2b.refusal import CallRefused
from cloister.e2b.sandbox_routes import SANDBOX_ROUTES
from cloister.e2b.signature import claim_in
from cloister.e2b.snapshot_routes import SNAPSHOT_ROUTES
from cloister.e2b.template_routes import TEMPLATE_ROUTES
from cloister.e2b.volume_routes import VOLUME_ROUTES
from cloister.errors import Exhausted, TokenRefused
from cloister.server.app import House
from cloister.server.port_sockets import Opening, carry_socket
from cloister.server.resident import Resident
from cloister.server.tokens import OWNER_CALLER
from cloister.server.while_valid import LET_IN_BY, WhileValid
from cloister.store.place import state_directory

_UPLOAD = re.compile(r"/templates/[^/]+/files/[0-9a-f]{64}")
# The first clients add to the id what the API calls the client.
_HOST = re.compile(r"(\d{1,5})-(i[a-z0-9]+(?:-[a-z0-9]+)?)\.")
_ROUTES = [
    *SANDBOX_ROUTES,
    *NETWORK_ROUTES,
    # Before those of snapshots, to whom every other name below /templates may belong.
    *TEMPLATE_ROUTES,
    *SNAPSHOT_ROUTES,
    *BUILD_ROUTES,
    *VOLUME_ROUTES,
]
_ANYWHERE = {
    "access-control-allow-origin": "*",
    "access-control-expose-headers": "*",
}
_PREFLIGHT = {
    **_ANYWHERE,
    "access-control-allow-methods": "GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS",
    "access-control-allow-headers": "*, authorization",
    "access-control-max-age": "7200",
}


class E2BDoor:
    """Answers what E2B's SDKs send: the control API, and everything of one sandbox."""

    def __init__(self, house: House) -> None:
        most_upload_bytes = house.fleet.settings.upload_bytes
        derived = Derived(read_key(state_directory()), house.access.tokens)
        self._boxes = Boxes(derived, most_upload_bytes)
        builds = Builds(state_directory() / "e2b-builds", house.fleet.quotas)
        self._desk = Desk(house, self._boxes, Asleep(house.fleet), builds)

    def takes(self, scope: Scope) -> bool:
        """Whether a request is of this protocol."""
        if scope["type"] not in ("http", "websocket"):
            return False
        if _address(scope) is not None or control.is_control_path(scope["path"]):
            return True
        return scope["path"] == "/files" and b"signature=" in scope.get("query_string", b"")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer it."""
        address = _address(scope)
        hear(scope)
        if scope["type"] == "websocket":
            status = await self._websocket(address, scope, receive, send)
            tell(self._desk.house.observation, scope, status)
            return
        request = Request(scope, receive)
        if address is None and request.method == "PUT" and _UPLOAD.fullmatch(scope["path"]):
            response = await answering(partial(put_file, self._desk))(request)
        elif address is None and scope["path"].startswith("/volumecontent/"):
            response = await volume_content.answer(self._desk, request)
        elif address is None and scope["path"] != "/files":
            response = await control.answer(self._desk, _ROUTES, request)
        elif request.method == "OPTIONS":
            response = Response(status_code=204, headers=_PREFLIGHT)
        elif address is None:
            response = await answering(self._by_signature)(request)
        else:
            response = await self._answer(*address, request)
        if address is not None:
            response.headers.update(_ANYWHERE)
        tell(self._desk.house.observation, scope, response.status_code)
        await response(scope, receive, send)

    async def close(self) -> None:
        """Let go of everything."""
        await self._boxes.close()

    async def _by_signature(self, request: Request) -> Response:
        claim = claim_in(request)
        box = None if claim is None else await self._boxes.signed(claim)
        found = None if box is None else self._boxes.find(box.id)
        if box is None or found is None:
            raise CallRefused("unauthenticated", "invalid signature")
        hear_resident(request.scope, found[1], "/files")
        self._desk.house.access.hold(request.scope, found[1].tenant)
        return await envd.answer(box, request)

    async def _answer(self, port: int, id: str, request: Request) -> Response:
        found = self._find(id)
        if found is None:
            return bad_gateway(id, "The sandbox was not found")
        box, resident = found
        hear_resident(request.scope, resident, _known(port, request))
        try:
            # By the rate of its tenant's own requests, or of those who know its address.
            visits = not await _is_of_its_tenant(box, port, request)
            self._desk.house.access.hold(request.scope, resident.tenant, visits=visits)
        except Exhausted as error:
            return error_answer(429, error.message)
        # Whoever may not come in does not wake it either: its tenant pays for what runs.
        if box.sandbox.is_paused and not (
            await _is_let_in(box, port, request) and await self._wake(box, resident)
        ):
            return bad_gateway(id, "The sandbox was not found")
        if port == envd.PORT:
            return await envd.answer(box, request)
        if not await _lets_traffic(box, request.scope):
            return json_answer(
                {"sandboxId": id, "message": "the traffic access token is wrong", "code": 403}, 403
            )
        if port == interpreter.PORT:
            return await interpreter.answer(box, request)
        return await proxy(box, port, request)

    async def _websocket(
        self, address: tuple[int, str] | None, scope: Scope, receive: Receive, send: Send
    ) -> int:
        """Carry a WebSocket to a port, or close it; return what of it is noted."""
        found = None if address is None else self._find(address[1])
        if address is None or found is None or not await _lets_traffic(found[0], scope):
            await send({"type": "websocket.close", "code": 4404})
            return 404
        hear_resident(scope, found[1], None)
        if address[0] in (envd.PORT, interpreter.PORT):
            await send({"type": "websocket.close", "code": 4404})
            return 404
        try:
            self._desk.house.access.hold(scope, found[1].tenant, visits=True)
        except Exhausted:
            await send({"type": "websocket.close", "code": 4429})
            return 429
        box, port = found[0], address[0]
        if box.sandbox.is_paused and not await self._wake(box, found[1]):
            await send({"type": "websocket.close", "code": 4404})
            return 404
        headers = passed_headers(box, port, scope["headers"])
        opening = Opening(target_of(scope), headers, scope.get("subprotocols", []))
        # Of those that came by a token, for as long as the key it was made from is valid.
        caller = replace(OWNER_CALLER, token=scope.get(LET_IN_BY, OWNER_CALLER.token))
        try:
            with WhileValid(self._desk.house.access.tokens, caller):
                await carry_socket(box.sandbox, port, opening, receive, send)
        except TokenRefused:
            await send({"type": "websocket.close", "code": 4401})
        return 101

    def _find(self, id: str) -> tuple[Box, Resident] | None:
        own = own_id(id)
        return None if own is None else self._boxes.find(public_id(own))

    async def _wake(self, box: Box, resident: Resident) -> bool:
        """Let a paused sandbox go on, if it was asked for so that it may; whether it does."""
        if box.terms.is_resumed_by_traffic:
            await resume_for_traffic(self._desk, resident)
        return box.terms.is_resumed_by_traffic


async def _is_of_its_tenant(box: Box, port: int, request: Request) -> bool:
    if port == envd.PORT:
        return await envd.is_opened_by(box, request)
    if port != interpreter.PORT:
        return False
    return await box.key_of(request.headers.get("x-access-token")) is not None


def _known(port: int, request: Request) -> str | None:
    """Return the path of a call to a sandbox as it is written here, if it is one of ours."""
    if port == envd.PORT:
        return envd.known_path(request.url.path)
    return interpreter.known_path(request.url.path) if port == interpreter.PORT else None


async def _is_let_in(box: Box, port: int, request: Request) -> bool:
    if port == envd.PORT:
        return await envd.is_opened_by(box, request)
    if not await _lets_traffic(box, request.scope):
        return False
    return port != interpreter.PORT or await interpreter.is_opened_by(box, request)


async def _lets_traffic(box: Box, scope: Scope) -> bool:
    """Whether whoever sends a request may reach the servers inside."""
    if box.terms.is_open_to_traffic:
        return True
    key = await box.traffic_key_of(Headers(scope=scope).get("e2b-traffic-access-token"))
    if key is not None:
        scope[LET_IN_BY] = key
    return key is not None


def _address(scope: Scope) -> tuple[int, str] | None:
    """Return the port and the sandbox that a request is for, by its headers or its host."""
    headers = Headers(scope=scope)
    id, port = headers.get("e2b-sandbox-id"), headers.get("e2b-sandbox-port")
    if id is not None and port is not None and port.isdecimal() and len(port) < 6:
        # Some clients name the sandbox also to the API that speaks about it.
        is_control = int(port) == envd.PORT and control.is_control_path(scope["path"])
        return None if is_control else (int(port), id)
    matched = _HOST.match(headers.get("host", "").lower())
    return None if matched is None else (int(matched[1]), matched[2])
