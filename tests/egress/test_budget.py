"""A budget holds for the whole life of a sandbox, whatever becomes of its gateway."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from cloister import Sandbox
from cloister.ledger import LimitHit
from cloister.ledger.reading import read_entries
from cloister.node import Node
from cloister.policy import Egress
from cloister.store.place import state_directory


async def test_a_budget_ends_what_runs_and_outlives_its_gateway(web: Any, sandbox_to: Any) -> None:
    at = f"web.test:{web.port}"
    egress = Egress([at], ["web.test"], budget={"bytes_in": "1MiB", "connections": 4})
    async with Sandbox(egress=egress) as sandbox:
        small = await sandbox.run(f"curl -sS -m 20 http://{at}/hello")
        large = await sandbox.run(f"curl -sS -m 20 -o large http://{at}/large; wc -c < large")
        after = await sandbox.run(f"curl -sS -m 20 http://{at}/hello")
        gateway = Node.current().gateway
        pid = gateway.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            await gateway.wait_other(pid)
        anew = await sandbox.run(f"curl -sS -m 20 http://{at}/hello")
        traffic = await sandbox.traffic()
    assert small.stdout == "hello from outside\n"
    assert 0 < int(large.stdout) <= 2**20
    assert not after.ok and not anew.ok
    assert web.paths == ["/hello", "/large"]
    assert {each.rule for each in traffic.denied if each.kind == "connection"} == {"egress.budget"}
    hits = [
        (each.payload.limit, each.payload.value)
        for each in read_entries(state_directory(), sandbox.id)
        if isinstance(each.payload, LimitHit)
    ]
    assert ("egress.bytes_in", 2**20) in hits
