"""Over HTTP: who is let in, whose sandbox is whose, and that it goes when its client does."""

from __future__ import annotations

import os
import subprocess
import sys

import httpx2
import pytest

COMMAND = [sys.executable, "-m", "cloister", "mcp"]
TOKEN = "a-token-for-tests-0123456789"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


async def test_only_the_token_opens_and_no_web_page_is_let_in(serve, sandboxes_of) -> None:
    served = serve("--origin", "http://good.example")
    async with httpx2.AsyncClient(headers=ACCEPT, timeout=30) as http:

        async def status(**headers: str) -> int:
            answer = await http.post(served.url, json=HELLO, headers=headers)
            return int(answer.status_code)

        assert await status() == 401
        assert await status(Authorization="Bearer wrong-token-0123456789") == 401
        assert await status(Authorization=TOKEN) == 401
        assert await status(**BEARER, Origin="http://evil.example") == 403
        assert await status(**BEARER, Origin="null") == 403
        assert await status(**BEARER, Host="evil.example") == 421
        assert await status(**BEARER, Origin="http://good.example") == 200
        own = served.url.removesuffix("/mcp")
        assert await status(**BEARER, Origin=own) == 200
        assert await status(**BEARER, Origin=own.rpartition(":")[0] + ":1") == 403
        assert await status(**BEARER) == 200
        # Who is not let in makes nothing.
        assert not sandboxes_of(served.process.pid)


async def test_each_session_has_its_sandbox_and_its_end_is_theirs(
    served, join, sandboxes_of, wait_until
) -> None:
    pid = served.process.pid
    await wait_until(lambda: not sandboxes_of(pid))
    async with join(served, "legacy") as one:
        await one("write", path="mine", content="x")
        async with join(served, "legacy") as two:
            assert "does not exist" in await two.fails("read", path="mine")
            await wait_until(lambda: len(sandboxes_of(pid)) == 2)
        await wait_until(lambda: len(sandboxes_of(pid)) == 1)
        assert (await one("read", path="mine"))["text"] == "x"
    await wait_until(lambda: not sandboxes_of(pid))


async def test_a_made_up_session_is_refused_and_costs_nothing(served, sandboxes_of) -> None:
    before = sandboxes_of(served.process.pid)
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "list"}}
    async with httpx2.AsyncClient(headers={**ACCEPT, **BEARER}, timeout=30) as http:
        for session in ("guess", "../../x", "a" * 4000):
            answer = await http.post(served.url, json=call, headers={"mcp-session-id": session})
            assert answer.status_code >= 400
        huge = await http.post(served.url, content=b"x" * (30 * 2**20))
        assert huge.status_code == 413
    assert sandboxes_of(served.process.pid) == before


async def test_without_sessions_the_sandbox_is_the_servers(served, join) -> None:
    async with join(served) as one:
        assert one.client.protocol_version == "2026-07-28"
        await one("write", path="mine", content="x")
    async with join(served) as two:
        assert (await two("read", path="mine"))["text"] == "x"


@pytest.mark.parametrize(
    ("options", "token", "says"),
    [
        (["--listen", "0.0.0.0:0"], TOKEN, "proxy with TLS"),
        (["--listen", "127.0.0.1"], TOKEN, "127.0.0.1:PORT"),
        (["--listen", "127.0.0.1:0"], "", "16"),
        (["--listen", "127.0.0.1:0"], None, "token"),
        (["--token-file", "x"], None, "--listen"),
    ],
)
def test_what_would_be_unsafe_or_meaningless_is_refused(options, token, says) -> None:
    environment = {name: value for name, value in os.environ.items() if "MCP" not in name}
    if token is not None:
        environment["CLOISTER_MCP_TOKEN"] = token
    done = subprocess.run(
        [*COMMAND, *options], env=environment, input="", capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 2
    assert says in done.stderr
