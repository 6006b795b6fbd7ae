"""What crosses the boundary is in the ledger: names, connections with their bytes, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cloister import Sandbox
from cloister.ledger import Connected, ConnectionClosed, NameAsked
from cloister.ledger.reading import make_receipt, read_entries, verify_ledger
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
