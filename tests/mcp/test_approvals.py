"""What waits for a person is asked through the client, in both eras; the far end says what came."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Iterator
from typing import Any

import mcp_types as wire
import pytest
from mcp import Client

from cloister import Policy, Sandbox
from cloister.mcp.desk import Desk
from cloister.mcp.desks import Desks
from cloister.mcp.server import make_server
from cloister.node import Node
from cloister.node.approval_client import answer_question, list_questions
from cloister.policy import Approvals, Egress, EgressRule


class FarEnd(http.server.ThreadingHTTPServer):
    """A server that remembers what it was asked for."""

    asked: list[str]


class Answering(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"hi\n")

    def log_message(self, format: str, *arguments: Any) -> None:
        return


@pytest.fixture
def far_end() -> Iterator[FarEnd]:
    """Listens on this machine."""
    server = FarEnd(("127.0.0.1", 0), Answering)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
async def server(far_end: FarEnd, tmp_path, monkeypatch):
    """A server whose sandboxes must ask before they reach the far end."""
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path / "state"))
    Node.current().gateway.answers = {"web.test": ["127.0.0.1"]}
    place = f"web.test:{far_end.server_port}"
    rule = EgressRule(name="a person says", host=place, effect="ask", private=True)
    policy = Policy(egress=Egress(rules=[rule]), approvals=Approvals(wait="20s"), ledger="off")

    async def open_one(approve) -> Sandbox:
        return await Sandbox(policy, approve=approve).open()

    desks = Desks(lambda: Desk(policy, open_one, kept=False), shared=False)
    yield make_server(desks, "1")
    await Node.current().close()


def fetch(far_end: FarEnd, path: str) -> dict[str, str]:
    return {"command": f"curl -sS -m 15 http://web.test:{far_end.server_port}/{path}"}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_person_is_asked_through_the_client(server, far_end: FarEnd, mode: str) -> None:
    messages: list[str] = []
    answers: Iterator[wire.ElicitResult] = iter(
        [
            wire.ElicitResult(action="accept", content={"answer": "once"}),
            wire.ElicitResult(action="accept", content={"answer": "deny"}),
        ]
    )

    async def ask(context, params) -> wire.ElicitResult:
        messages.append(params.message)
        # Held: the far end has heard of nothing that was not allowed.
        assert far_end.asked == ([] if len(messages) == 1 else ["/once"])
        return next(answers)

    async with Client(server, mode=mode, elicitation_callback=ask) as client:
        allowed = await client.call_tool("run", fetch(far_end, "once"))
        assert allowed.structured_content["output"] == "hi\n"
        denied = await client.call_tool("run", fetch(far_end, "never"))
        assert denied.structured_content["exit_code"] != 0
    assert far_end.asked == ["/once"]
    assert f"a connection to web.test:{far_end.server_port}" in messages[0]
    assert "rule: a person says" in messages[0]


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_what_is_no_clear_yes_is_a_no(server, far_end: FarEnd, action) -> None:
    async def ask(context, params) -> wire.ElicitResult:
        return wire.ElicitResult(action=action)

    async with Client(server, elicitation_callback=ask) as client:
        result = await client.call_tool("run", fetch(far_end, "x"))
    assert result.structured_content["exit_code"] != 0
    assert far_end.asked == []


async def test_a_client_without_a_person_leaves_it_to_other_ways(server, far_end: FarEnd) -> None:
    async with Client(server) as client:
        running = asyncio.ensure_future(client.call_tool("run", fetch(far_end, "x")))
        place = f"web.test:{far_end.server_port}"
        numbers: list[int] = []
        async with asyncio.timeout(20):
            while not numbers:
                await asyncio.sleep(0.02)
                listed = await asyncio.to_thread(list_questions)
                numbers = [each.number for each in listed if f"host: {place}" in each.lines]
        assert far_end.asked == []
        await asyncio.to_thread(answer_question, numbers[0], "once")
        assert (await running).structured_content["output"] == "hi\n"
    assert far_end.asked == ["/x"]


async def test_an_answer_to_nothing_is_refused(server) -> None:
    async with Client(server) as client:
        result = await client.session.call_tool(
            "run",
            {"command": "echo ran > /workspace/ran"},
            request_state="made-up",
            input_responses={
                "approval": wire.ElicitResult(action="accept", content={"answer": "once"})
            },
        )
        assert result.is_error and "anew" in result.content[0].text
        looked = await client.call_tool("run", {"command": "ls"})
        assert looked.structured_content["output"] == ""
