"""Everything under /v1, one file for each kind of thing."""

from __future__ import annotations

from cloister.server.endpoint import Conversation, Endpoint
from cloister.server.routes import (
    apply,
    approvals,
    files,
    ledgers,
    ports,
    processes,
    record,
    running,
    sandboxes,
    secrets,
    state,
    stock,
    upkeep,
)


def endpoints() -> list[Endpoint]:
    """Return every endpoint, in the order of the documentation."""
    return [
        *sandboxes.ENDPOINTS,
        *running.ENDPOINTS,
        *processes.ENDPOINTS,
        *files.ENDPOINTS,
        *ports.ENDPOINTS,
        *state.ENDPOINTS,
        *apply.ENDPOINTS,
        *stock.ENDPOINTS,
        *secrets.ENDPOINTS,
        *record.ENDPOINTS,
        *ledgers.ENDPOINTS,
        *upkeep.ENDPOINTS,
        *approvals.ENDPOINTS,
    ]


def conversations() -> list[Conversation]:
    """Return every WebSocket."""
    return [*processes.CONVERSATIONS, *files.CONVERSATIONS, *ports.CONVERSATIONS]
