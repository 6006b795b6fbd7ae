"""Tries what a ledger needs: something that signs, and a kernel that tells of processes."""

from __future__ import annotations

from collections.abc import Iterator

from cloister.doctor.finding import Finding, advice, ok
from cloister.errors import Unsupported
from cloister.ledger.ed25519 import can_sign
from cloister.node.process_socket import EXECUTIONS, ProcessSocket


def look_at_ledger() -> Iterator[Finding]:
    """Yield whether ledgers are signed, and whether they name every process inside."""
    if can_sign():
        yield ok("ledger", "what is recorded is signed")
    else:
        yield advice(
            "ledger", "what is recorded is chained and not signed", "pip install 'cloister[ledger]'"
        )
    try:
        ProcessSocket(EXECUTIONS).close()
    except Unsupported as error:
        yield advice(
            "process events",
            f"a ledger names only the processes that callers start: {error}",
            "run as root, or on Linux 6.6 or newer, outside of containers",
        )
    else:
        yield ok("process events", "a ledger names every process inside, by the kernel's word")
