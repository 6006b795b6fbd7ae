"""The gateway dies, and nothing leaks, all is served again; its owner dies, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloister import Sandbox
from cloister.blocking import Sandbox as BlockingSandbox
from cloister.node import Node
from cloister.verify.ends import wait_all_ended

Make = Callable[..., Sandbox]


async def test_a_killed_gateway_resets_what_was_open_and_another_serves(
    echo: Any, sandbox_to: Make, inside: Any
) -> None:
    text = f"""
import socket, sys
s = socket.create_connection(("web.test", {echo.port}), 10)
print(s.recv(100), s.getpeername()[0], flush=True)
try: print(s.recv(100), flush=True)
except ConnectionResetError: print("reset", flush=True)
# The address as it is known, without asking again.
s = socket.create_connection(("198.18.0.2", {echo.port}), 10)
print(s.recv(100), flush=True)
"""
    async with sandbox_to(f"web.test:{echo.port}", f"other.test:{echo.port}") as sandbox:
        gateway = Node.current().gateway
        first = gateway.pid
        assert first is not None
        program = await sandbox.start(inside(text))
        assert program.stdout is not None
        opened = await program.stdout.read()
        os.kill(first, signal.SIGKILL)
        result = await program.wait()
        rest = b""
        while part := await program.stdout.read():
            rest += part
        # Another name first: it must not get the address that was given before.
        other = await sandbox.run("getent ahostsv4 other.test")
        traffic = await sandbox.traffic()
        assert gateway.pid not in (None, first)
    assert b"220 welcome" in opened
    assert rest.splitlines() == [b"reset", b"b'220 welcome\\n'"]
    assert result.exit_code == 0
    assert other.stdout.split()[0] == "198.18.0.3"
    assert "cut off" in str(traffic.reached[0].error)
    assert traffic.reached[1].error is None


async def test_a_killed_gateway_comes_back_on_a_node_that_was_closed_before(
    web: Any, sandbox_to: Make
) -> None:
    await Node.current().close()
    async with sandbox_to(f"web.test:{web.port}") as sandbox:
        gateway = Node.current().gateway
        first = gateway.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(60):
            await gateway.wait_other(first)
        asked = await sandbox.run(f"curl -sS http://web.test:{web.port}/hello", timeout=60)
        assert asked.stdout == "hello from outside\n", asked.stderr


async def test_a_gateway_that_is_killed_again_and_again_comes_back(
    web: Any, sandbox_to: Make
) -> None:
    async with sandbox_to(f"web.test:{web.port}") as sandbox:
        gateway = Node.current().gateway
        for _ in range(3):
            await gateway.wait_ready()
            pid = gateway.pid
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
            got = await sandbox.run(
                f"curl -sS -m 20 --retry 5 --retry-all-errors http://web.test:{web.port}/hello"
            )
            assert got.stdout == "hello from outside\n", got.stderr


async def test_the_gateway_ends_with_its_owner_however_that_ends(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from cloister import Sandbox
from cloister.node import Node
async def main():
    async with Sandbox(egress=["web.test"]) as sandbox:
        print(Node.current().gateway.pid, flush=True)
        if sys.argv[1] == "wait": await asyncio.sleep(60)
asyncio.run(main())
"""
    for how in ("end", "wait"):
        owner = subprocess.Popen([sys.executable, "-c", program, how], stdout=subprocess.PIPE)
        assert owner.stdout is not None
        pid = int(await asyncio.to_thread(owner.stdout.readline))
        if how == "wait":
            assert Path(f"/proc/{pid}").exists()
            owner.kill()
        await asyncio.to_thread(owner.wait)
        owner.stdout.close()
        await asyncio.wait_for(wait_all_ended([pid]), 20)


async def test_the_gateway_has_nothing_of_its_owners_environment_or_rights(
    sandbox_to: Make, monkeypatch: Any
) -> None:
    monkeypatch.setenv("CANARY", "canary-value")
    async with sandbox_to("web.test"):
        pid = Node.current().gateway.pid
        environ = subprocess.run(["cat", f"/proc/{pid}/environ"], capture_output=True)
        status = Path(f"/proc/{pid}/status").read_text()
    assert b"canary" not in environ.stdout
    assert "NoNewPrivs:\t1" in status
    assert "CapEff:\t0000000000000000" in status
    assert "Uid:\t0\t" not in status


async def test_a_sandbox_that_ended_still_tells(web: Any, sandbox_to: Make) -> None:
    async with sandbox_to(f"web.test:{web.port}") as sandbox:
        await sandbox.run(f"curl -sS -m 10 http://web.test:{web.port}/hello")
    (reached,) = (await sandbox.traffic()).reached
    assert reached.host == "web.test"
    assert not reached.is_open


async def test_many_at_once_are_served_and_none_is_crossed(web: Any, sandbox_to: Make) -> None:
    count = 24

    async def one(number: int) -> str:
        async with sandbox_to(f"web.test:{web.port}") as sandbox:
            command = f"curl -sS -m 30 http://web.test:{web.port}/hello?{number}"
            results = await asyncio.gather(*(sandbox.run(command) for _ in range(3)))
            assert {result.stdout for result in results} == {"hello from outside\n"}
            reached = (await sandbox.traffic()).reached
            return f"{len(reached)} {reached[0].host}"

    assert set(await asyncio.gather(*map(one, range(count)))) == {"3 web.test"}
    assert Counter(web.paths) == {f"/hello?{number}": 3 for number in range(count)}


def test_it_works_without_await(web: Any) -> None:
    with BlockingSandbox(egress=["web.test"]) as sandbox:
        found = sandbox.run("getent ahostsv4 web.test")
        other = sandbox.run("getent ahostsv4 other.test")
        asked = {event.host: event.allowed for event in sandbox.traffic().asked}
    assert found.stdout.startswith("198.18.0.2")
    assert other.exit_code == 2
    assert asked == {"web.test": True, "other.test": False}


async def test_a_gateway_that_hangs_does_not_hang_its_owner(web: Any, sandbox_to: Make) -> None:
    async with sandbox_to(f"web.test:{web.port}") as sandbox:
        gateway = Node.current().gateway
        hung = gateway.pid
        assert hung is not None
        os.kill(hung, signal.SIGSTOP)
        # Frames that nobody reads, until no more fit.
        async with asyncio.timeout(30):
            while gateway.pid == hung:
                for _ in range(100):
                    gateway.forget(sandbox.id)
                    assert sandbox.guest.doors is not None
                    gateway.serve(sandbox.id, sandbox.policy, sandbox.guest.doors, sandbox._traffic)
                await asyncio.sleep(0)
            await gateway.wait_other(hung)
        got = await sandbox.run(f"curl -sS -m 20 http://web.test:{web.port}/hello")
    assert got.stdout == "hello from outside\n", got.stderr
