"""What waits for a person: held, shown, answered in every way, and denied by default."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from cloister import NotFound, Sandbox
from cloister.ledger import ApprovalAnswered, ApprovalAsked, Connected
from cloister.ledger.reading import make_receipt, read_entries, verify_ledger
from cloister.model.approvals import Answer, Question
from cloister.node import Node
from cloister.node.approval_client import Listed, answer_question, list_questions
from cloister.policy import Approvals, Egress, EgressRule, Policy
from cloister.store.place import state_directory

Open = Callable[..., Sandbox]


@pytest.fixture
async def asking(sandbox_to: Any) -> AsyncIterator[Open]:
    """Make a sandbox that must ask for each connection to web.test."""

    def make(port: int, wait: str = "20s", **more: Any) -> Sandbox:
        rule = EgressRule(name="a person says", host=f"web.test:{port}", effect="ask", private=True)
        approvals = Approvals(wait=wait, webhook=more.pop("webhook", None))
        policy = Policy(egress=Egress(rules=[rule]), approvals=approvals)
        return Sandbox(policy, **more)

    yield make


def fetch(port: int, path: str = "/hello") -> str:
    return f"curl -sS -m 25 http://web.test:{port}{path}"


async def waiting(count: int = 1, sandbox: str | None = None) -> list[Listed]:
    """Wait until so many questions wait."""
    async with asyncio.timeout(20):
        while True:
            found = await asyncio.to_thread(list_questions)
            mine = [each for each in found if sandbox in (None, each.sandbox)]
            if len(mine) >= count:
                return mine
            await asyncio.sleep(0.02)


async def withdrawn(sandbox: str) -> None:
    """Wait until no question of a sandbox waits."""
    async with asyncio.timeout(20):
        while any(each.sandbox == sandbox for each in await asyncio.to_thread(list_questions)):
            await asyncio.sleep(0.02)


async def test_what_is_asked_for_passes_only_when_a_person_says_so(web: Any, asking: Open) -> None:
    async with asking(web.port) as sandbox:
        for how, reached in (("once", True), ("deny", False)):
            running = asyncio.ensure_future(sandbox.run(fetch(web.port, f"/hello?{how}")))
            (listed,) = await waiting(sandbox=sandbox.id)
            # Held: the far end has heard of nothing yet.
            assert web.connections == (0 if how == "once" else 1)
            assert f"what: a connection to web.test:{web.port}" in listed.lines
            await asyncio.to_thread(answer_question, listed.number, how)
            result = await running
            assert result.ok is reached
    assert web.paths == ["/hello?once"]


async def test_nobody_answering_is_a_deny_and_all_of_it_is_recorded(web: Any, asking: Open) -> None:
    async with asking(web.port, wait="500ms") as sandbox:
        result = await sandbox.run(fetch(web.port))
        await sandbox.traffic()
    assert not result.ok and web.connections == 0
    entries = list(read_entries(state_directory(), sandbox.id))
    (asked,) = [each for each in entries if isinstance(each.payload, ApprovalAsked)]
    (answered,) = [each for each in entries if isinstance(each.payload, ApprovalAnswered)]
    denied = [each for each in entries if isinstance(each.payload, Connected)]
    assert answered.payload.answer == "timeout"
    assert answered.payload.digest == asked.payload.digest
    assert [each.payload.effect.value for each in denied] == ["deny"]
    assert asked.sequence < answered.sequence < denied[0].sequence
    assert verify_ledger(state_directory(), sandbox.id).holds
    assert make_receipt(state_directory(), sandbox.id).approvals


async def test_an_answer_for_the_sandbox_covers_the_same_and_nothing_else(
    web: Any, tls: Any, sandbox_to: Any
) -> None:
    rules = [
        EgressRule(name=f"ask {port}", host=f"web.test:{port}", effect="ask", private=True)
        for port in (web.port, tls.port)
    ]
    policy = Policy(egress=Egress(rules=rules), approvals=Approvals(wait="1s"))
    asked: list[Question] = []

    async def approve(question: Question) -> Answer | bool:
        asked.append(question)
        return Answer("for_sandbox", "tests") if question.port == web.port else False

    async with Sandbox(policy, approve=approve) as sandbox:
        first, second = [await sandbox.run(fetch(web.port)) for _ in range(2)]
        other = await sandbox.run(f"curl -skS -m 10 https://web.test:{tls.port}/hello")
    assert first.ok and second.ok and not other.ok
    assert [each.port for each in asked] == [web.port, tls.port]
    assert (len(web.paths), tls.connections) == (2, 0)


async def test_an_answer_for_a_time_ends_with_it(web: Any, asking: Open) -> None:
    asked = []

    def approve(question: Question) -> Answer:
        asked.append(question)
        return Answer("for_time", "tests", until=time.time() + 1.5)

    async with asking(web.port, approve=approve) as sandbox:
        assert (await sandbox.run(fetch(web.port))).ok
        assert (await sandbox.run(fetch(web.port))).ok
        assert len(asked) == 1
        assert (await sandbox.run(f"sleep 1.6; {fetch(web.port)}")).ok
    assert len(asked) == 2


async def test_a_callback_that_fails_is_a_deny(web: Any, asking: Open) -> None:
    async def approve(question: Question) -> bool:
        raise RuntimeError("no")

    async with asking(web.port, approve=approve) as sandbox:
        assert not (await sandbox.run(fetch(web.port))).ok
    assert web.connections == 0


async def test_a_program_that_goes_away_is_not_asked_about_any_more(web: Any, asking: Open) -> None:
    async with asking(web.port) as sandbox:
        process = await sandbox.start(fetch(web.port))
        await waiting(sandbox=sandbox.id)
        process.signal(signal.SIGKILL)
        await withdrawn(sandbox.id)
    answers = [
        each.payload.answer
        for each in read_entries(state_directory(), sandbox.id)
        if isinstance(each.payload, ApprovalAnswered)
    ]
    assert answers == ["cancelled"] and web.connections == 0


async def test_the_end_of_a_sandbox_withdraws_its_questions(web: Any, asking: Open) -> None:
    async with asking(web.port) as sandbox:
        await sandbox.start(fetch(web.port))
        (listed,) = await waiting(sandbox=sandbox.id)
    found = await asyncio.to_thread(list_questions)
    assert all(each.number != listed.number for each in found) and web.connections == 0


async def test_a_gateway_killed_in_the_middle_lets_nothing_through(web: Any, asking: Open) -> None:
    async with asking(web.port) as sandbox:
        running = asyncio.ensure_future(sandbox.run(fetch(web.port)))
        (listed,) = await waiting(sandbox=sandbox.id)
        pid = Node.current().gateway.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert not (await running).ok and web.connections == 0
        again = asyncio.ensure_future(sandbox.run(fetch(web.port)))
        (other,) = await waiting(sandbox=sandbox.id)
        assert other.number > listed.number
        await asyncio.to_thread(answer_question, other.number, "once")
        assert (await again).ok


async def test_another_process_lists_and_answers(web: Any, asking: Open) -> None:
    async def cli(*words: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cloister", *words), stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()

    async with asking(web.port, label="task-42") as sandbox:
        running = asyncio.ensure_future(sandbox.run(fetch(web.port)))
        (listed,) = await waiting(sandbox=sandbox.id)
        code, shown = await cli("approvals")
        assert code == 0 and listed.digest in shown and f"{listed.number}  task-42  " in shown
        code, said = await cli("approve", str(listed.number), "--for", "10m")
        assert (code, said) == (0, f"allowed: a connection to web.test:{web.port}\n")
        assert (await running).ok
        # Single use: the number is of nothing any more.
        with pytest.raises(NotFound):
            await asyncio.to_thread(answer_question, listed.number, "once")
        assert (await sandbox.run(fetch(web.port))).ok


class _Webhook(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        end: Any = self.server
        end.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._say({"poll": "/answer"} if end.polled else self._answer())

    def do_GET(self) -> None:
        self._say(self._answer())

    def _answer(self) -> dict[str, Any]:
        end: Any = self.server
        digest = end.asked["digest"] if end.honest else "0" * 64
        return {"answer": "once", "digest": digest, "who": "somebody"}

    def _say(self, table: dict[str, Any]) -> None:
        data = json.dumps(table).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        return


@pytest.fixture
def webhook() -> Iterator[Any]:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Webhook)
    server.polled, server.honest = False, True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("honest", "polled"), [(True, False), (False, False), (True, True)])
async def test_a_webhook_answers_the_question_it_was_sent(
    web: Any, asking: Open, webhook: Any, honest: bool, polled: bool
) -> None:
    webhook.honest, webhook.polled = honest, polled
    address = f"http://127.0.0.1:{webhook.server_port}/ask"
    async with asking(web.port, webhook=address) as sandbox:
        result = await sandbox.run(fetch(web.port))
    assert webhook.asked["question"]["host"] == "web.test"
    assert result.ok is honest and web.connections == int(honest)


async def test_the_disk_is_saved_before_what_waits_is_let_through(web: Any, asking: Open) -> None:
    async with asking(web.port, storage="disk") as sandbox:
        await sandbox.run("echo before > /workspace/file")
        line = f"{fetch(web.port)} > /dev/null && echo after > /workspace/file"
        running = asyncio.ensure_future(sandbox.run(line))
        (listed,) = await waiting(sandbox=sandbox.id)
        async with asyncio.timeout(20):
            while not listed.snapshot:
                (listed,) = await waiting(sandbox=sandbox.id)
        await asyncio.to_thread(answer_question, listed.number, "once")
        assert (await running).ok
        assert (await sandbox.files.read("/workspace/file")) == b"after\n"
        await sandbox.rewind(listed.snapshot)
        assert (await sandbox.files.read("/workspace/file")) == b"before\n"


@pytest.mark.parametrize("stays", [True, False])
async def test_a_request_is_sent_for_a_program_that_is_still_there(
    tls: Any, sandbox_to: Any, certificate: Any, monkeypatch: Any, stays: bool
) -> None:
    monkeypatch.setenv("CLOISTER_CA_FILE", str(certificate))
    rule = EgressRule(
        name="sending", host=f"web.test:{tls.port}", methods=["POST"], effect="ask", private=True
    )
    async with Sandbox(egress=Egress(rules=[rule])) as sandbox:
        process = await sandbox.start(f"curl -sS -d hello https://web.test:{tls.port}/x")
        (listed,) = await waiting(sandbox=sandbox.id)
        assert f"what: POST web.test:{tls.port} /x" in listed.lines
        if stays:
            await asyncio.to_thread(answer_question, listed.number, "once")
        else:
            process.signal(signal.SIGKILL)
            await withdrawn(sandbox.id)
        await process.wait()
    assert tls.paths == (["/x"] if stays else [])


async def test_what_a_person_allowed_is_asked_anew_after_the_rules_were_replaced(
    web: Any, asking: Open
) -> None:
    asked: list[Question] = []

    def approve(question: Question) -> Answer:
        asked.append(question)
        return Answer("for_sandbox", "tests")

    async with asking(web.port, approve=approve) as sandbox:
        rules = sandbox.policy.egress
        for _ in range(2):
            assert (await sandbox.run(fetch(web.port))).ok
        assert len(asked) == 1
        await sandbox.update_egress([])
        assert not (await sandbox.run(fetch(web.port))).ok
        assert rules is not None
        await sandbox.update_egress(rules)
        for _ in range(2):
            assert (await sandbox.run(fetch(web.port))).ok
    assert len(asked) == 2
