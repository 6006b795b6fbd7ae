"""What breaks the rules, from the client and from inside; and who is killed leaves nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cloister.verify.ends import wait_ended
from cloister.verify.resources import descendants

from ..families import hold_family

COMMAND = [sys.executable, "-m", "cloister", "mcp"]
CLIENT = """
import asyncio, os, sys
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

async def main():
    parameters = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:], env=dict(os.environ))
    async with Client(stdio_client(parameters)) as client:
        await client.call_tool("run", {"command": "sleep 600", "timeout_s": 300})

asyncio.run(main())
"""


async def test_wrong_arguments_are_explained_and_the_next_call_works(session) -> None:
    async with session() as call:
        wrong = [
            ("run", {"comand": "ls"}, "comand"),
            ("run", {"command": ""}, "command"),
            ("run", {"command": "a\0b"}, "zero byte"),
            ("run", {"command": "x" * 200_000}, "file"),
            ("run", {"command": "true", "cwd": "/no/where"}, "cannot be entered"),
            ("run", {"command": "true", "timeout_s": -1}, "timeout_s"),
            ("output", {"process": "p1", "cursor": -5}, "cursor"),
            ("read", {"path": "/dev/zero"}, "regular file"),
            ("read", {"path": "/"}, "directory"),
            ("read", {"path": "x" * 5000}, "path"),
            ("write", {"path": "/workspace", "content": ""}, "directory"),
            ("write", {"path": "/usr/bin/x", "content": ""}, "another place"),
            ("edit", {"path": "none", "old": "a", "new": "b"}, "does not exist"),
            ("search", {"glob": "{a,b}" * 20}, "braces"),
            ("list", {"path": "/etc/passwd"}, "file"),
        ]
        for tool, arguments, word in wrong:
            assert word in await call.fails(tool, **arguments), (tool, arguments)
        assert (await call("run", command="echo well"))["output"] == "well\n"


async def test_names_and_output_that_are_no_text_come_through(session) -> None:
    async with session() as call:
        await call("run", command="touch \"$(printf 'a\\377b')\" $'new\\nline'")
        names = [each["name"] for each in (await call("list"))["entries"]]
        assert names == ["a\\xffb", "new\nline"]
        printed = await call("run", command="printf '\\377\\033[31m\\000'")
        assert printed["output"] == "\ufffd\x1b[31m\x00"
        assert len((await call("search", glob="*"))["matches"]) == 2
        await call.client.list_resources()


async def test_endless_output_costs_a_bounded_amount(session) -> None:
    async with session() as call:
        ended = await call("run", command="head -c 60000000 /dev/zero | tr '\\0' x", timeout_s=60)
        assert ended["total_bytes"] == 60_000_000
        middle = await call("output", process=ended["process"], cursor=30_000_000)
        assert "not kept" in middle["output"]
        last = await call("output", process=ended["process"], cursor=59_999_990)
        assert (last["output"], last["next_cursor"]) == ("x" * 10, None)


def test_lines_that_are_no_messages_do_not_end_the_server() -> None:
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
    lines = [
        b"not json",
        b"[" * 100_000,
        b'{"jsonrpc": "2.0"}',
        b'{"jsonrpc": "2.0", "id": {}, "method": 5}',
        b"\xff\xfe\x00",
        json.dumps(hello).encode(),
        b'{"jsonrpc": "2.0", "id": 2, "method": "no/such"}',
        b'{"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": [1]}}',
        b'{"jsonrpc": "2.0", "id": 4, "method": "ping"}',
    ]
    answers: dict[object, dict[str, object]] = {}
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(b"\n".join(lines) + b"\n")
        server.stdin.flush()
        while 4 not in answers:
            answer = json.loads(server.stdout.readline())
            answers[answer.get("id")] = answer
    assert answers[1]["result"]["protocolVersion"] == "2025-11-25"
    assert "error" in answers[2] and "error" in answers[3]
    assert answers[4]["result"] == {}
    assert server.returncode == 0


@pytest.mark.parametrize("victim", ["client", "server"])
async def test_whoever_is_killed_leaves_no_process(victim, tmp_path, labelled, wait_until) -> None:
    label = f"killed-{victim}-{os.getpid()}"
    command = [sys.executable, "-c", CLIENT, *COMMAND, "--label", label]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as client:
        try:
            await wait_until(lambda: any(map(is_sleeping, descendants(client.pid))))
            await wait_until(lambda: bool(labelled(label)))
            family = hold_family(client.pid)
            target = client.pid if victim == "client" else next(iter(family))
            assert victim == "client" or b"mcp" in Path(f"/proc/{target}/cmdline").read_bytes()
            os.kill(target, signal.SIGKILL)
            for each in family.values():
                await asyncio.wait_for(wait_ended(each), 30)
                os.close(each)
        finally:
            client.kill()
    assert not labelled(label)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_although_the_client_still_talks(number: signal.Signals) -> None:
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        server.stdin.flush()
        assert server.stdout.readline()
        server.send_signal(number)
        assert server.wait(20) == 128 + number


def is_sleeping(pid: int) -> bool:
    try:
        return b"sleep\x00600" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
