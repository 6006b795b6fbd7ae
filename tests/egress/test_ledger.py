"""What crosses the boundary is in the ledger: names, connections with their bytes, refusals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Callable
from typing import Any

from cloister import HostError, Sandbox
from cloister.ledger import Connected, ConnectionClosed, NameAsked
from cloister.ledger.reading import make_receipt, read_entries, verify_ledger
from cloister.node import Node
from cloister.policy import Effect, LedgerMode
from cloister.store.place import state_directory

Make = Callable[..., Sandbox]


async def test_names_connections_and_refusals_are_recorded(web: Any, sandbox_to: Make) -> None:
    async with sandbox_to(f"web.test:{web.port}") as sandbox:
        assert sandbox.policy.ledger is LedgerMode.ON
        reached = await sandbox.run(f"curl -sS -m 10 http://web.test:{web.port}/hello")
        refused = await sandbox.run("curl -sS -m 10 http://other.test/")
        await sandbox.traffic()
    assert reached.ok and not refused.ok
    state = state_directory()
    entries = list(read_entries(state, sandbox.id))
    names = {
        (str(p.name), p.effect) for p in (e.payload for e in entries) if isinstance(p, NameAsked)
    }
    assert ("web.test", Effect.ALLOW) in names and ("other.test", Effect.DENY) in names
    (opened,) = [entry for entry in entries if isinstance(entry.payload, Connected)]
    (closed,) = [entry for entry in entries if isinstance(entry.payload, ConnectionClosed)]
    assert (opened.payload.host, opened.payload.port) == ("web.test", web.port)
    assert opened.span == closed.span and closed.payload.bytes_in > 0
    receipt = make_receipt(state, sandbox.id)
    assert [str(host.host) for host in receipt.hosts] == ["web.test"]
    report = verify_ledger(state, sandbox.id)
    assert report.holds and report.unfinished_count == 0


# Asks for what is allowed and what is not until it is told to stop, whatever becomes of it.
ASKING = """
import http.client, os, sys
allowed, denied = int(sys.argv[1]), int(sys.argv[2])
print("begun", flush=True)
while not os.path.exists("/tmp/stop"):
    for host, port, path in (("web.test", allowed, "/hello"), ("other.test", denied, "/leak")):
        try:
            connection = http.client.HTTPConnection(host, port, timeout=5)
            connection.request("GET", path)
            connection.getresponse().read()
        except OSError:
            continue
        finally:
            connection.close()
"""


async def test_a_gateway_killed_at_any_moment_leaks_nothing_and_leaves_a_ledger_that_holds(
    web: Any, other_web: Any, sandbox_to: Make
) -> None:
    moments = random.Random(4)
    async with sandbox_to(f"web.test:{web.port}") as sandbox:
        gateway = Node.current().gateway
        argv = ["/usr/bin/python3", "-c", ASKING, str(web.port), str(other_web.port)]
        program = await sandbox.start(argv)
        await anext(aiter(program.stdout))
        for _ in range(6):
            with contextlib.suppress(HostError):
                # One that was killed while it started did not; the next is on its way.
                await gateway.wait_ready()
            # Not for anything to happen: the moment itself is what is tried.
            await asyncio.sleep(moments.random() * 0.05)
            if (pid := gateway.pid) is not None:
                os.kill(pid, signal.SIGKILL)
        await sandbox.files.write("/tmp/stop", b"")
        ended = await program.wait()
        again = await sandbox.run(
            f"curl -sS -m 20 --retry 9 --retry-all-errors http://web.test:{web.port}/hello"
        )
    assert ended.ok and again.stdout == "hello from outside\n", again.stderr
    assert other_web.connections == 0
    report = verify_ledger(state_directory(), sandbox.id)
    assert report.holds and report.is_closed and report.unfinished_count == 0
