"""The control API: which endpoint answers which path."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from cloister.e2b.answers import answering, error_answer
from cloister.e2b.asleep import Asleep
from cloister.e2b.box import own_id
from cloister.e2b.boxes import Boxes
from cloister.e2b.builds import Builds
from cloister.e2b.heard import hear, hear_route
from cloister.e2b.refusal import CallRefused
from cloister.server.app import House
from cloister.server.tokens import Caller
from cloister.server.traces import named


@dataclass(frozen=True, slots=True)
class Desk:
    """What the endpoints of the control API share."""

    house: House
    boxes: Boxes
    asleep: Asleep
    builds: Builds


@dataclass(frozen=True, slots=True)
class Visit:
    """One request to the control API, and who makes it."""

    desk: Desk
    request: Request
    caller: Caller
    # What the path names, as the client wrote it: mostly one id, or nothing.
    named: str = ""
    further: str = ""

    @property
    def sandbox_id(self) -> str:
        """The sandbox that the path names, as the fleet calls it; whether it is there is asked."""
        found = own_id(self.named)
        if found is None:
            raise CallRefused("not_found", f"sandbox {self.named[:64]} not found")
        if self.caller.sandbox is not None and self.caller.sandbox != found:
            raise CallRefused("not_found", f"sandbox {self.named[:64]} not found")
        return found

    def require(self, scope: str) -> None:
        """Refuse a token that may not do this, or that is for one sandbox where all are meant."""
        self.caller.require(scope)
        if self.caller.sandbox is not None and not self.named:
            raise CallRefused("permission_denied", "this token is for one sandbox alone")

    def require_any_sandbox(self) -> None:
        """Refuse a token that is for one sandbox alone, whatever the path names."""
        self.caller.require_any_sandbox()

    @property
    def domain(self) -> str:
        """What ports of sandboxes are reached under, as `PORT-ID.domain`."""
        host = self.request.headers.get("host", "localhost").lower()
        name, colon, port = host.rpartition(":")
        if not colon or not port.isdecimal():
            name, colon, port = host, "", ""
        for known in self.desk.house.fleet.settings.hosts:
            if known.startswith("*."):
                return known[2:] + colon + port
        return (
            (name.removeprefix("api.") if name.startswith("api.") else "localhost") + colon + port
        )


Endpoint = Callable[[Visit], Awaitable[Response]]
Route = tuple[str, re.Pattern[str], Endpoint]


def route(method: str, path: str, endpoint: Endpoint) -> Route:
    """Return a route; each `{}` in the path is something that it names."""
    pattern = re.escape(path).replace(r"\{\}", r"([^/]{1,512})")
    return method, re.compile(pattern), endpoint


def is_control_path(path: str) -> bool:
    """Whether a path is of this API, whatever becomes of it."""
    return _AREAS.match(path) is not None


_AREAS = re.compile(
    r"/(?:v[23]/)?(?:sandboxes|templates|snapshots|volumes|volumecontent|secrets)(?:/|\Z)"
)


async def answer(desk: Desk, routes: list[Route], request: Request) -> Response:
    """Answer one request to the control API."""

    async def found(request: Request) -> Response:
        caller = await desk.house.access.caller(request)
        hear(request.scope).caller = caller
        # As it came: a name may hold an encoded slash, and is one segment all the same.
        path = request.scope.get("raw_path", b"").decode("ascii", "replace").partition("?")[0]
        for method, pattern, endpoint in routes:
            matched = pattern.fullmatch(path)
            if matched is not None and method == request.method:
                names = [unquote(each) for each in matched.groups()]
                hear_route(request.scope, pattern, caller)
                # The id that the path names, if it is one: whose it is has yet to be found out.
                hear(request.scope).sandbox = own_id(names[0]) if names else None
                named(f"{method} e2b {getattr(endpoint, '__name__', 'call').replace('_', ' ')}")
                return await endpoint(Visit(desk, request, caller, *names))
        return error_answer(501, f"{request.method} {path[:200]} is not supported here")

    return await answering(found)(request)
