"""One call as its tool sees it: told how far it is, and asked of a person in the client's way."""

from __future__ import annotations

from typing import Any

import mcp_types as wire
from mcp.server import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cloister.mcp.desks import Desks
from cloister.mcp.questions import SCHEMA, InputNeeded, Pending, settle

Call = ServerRequestContext[Desks, Any]
_KEY = "approval"


class Calling:
    """Whoever waits for one call."""

    def __init__(self, call: Call) -> None:
        self._call = call

    @property
    def can_ask(self) -> bool:
        """Whether the client says that it has a person to ask."""
        capabilities = self._call.session.client_capabilities
        return capabilities is not None and capabilities.elicitation is not None

    async def tell(self, seconds: float, line: str) -> None:
        """Tell the client, if it wants to know."""
        await self._call.session.report_progress(seconds, None, line or None)

    async def ask(self, pending: Pending) -> None:
        """Have a person asked: now, or, in the era without requests to clients, between calls."""
        if self._call.protocol_version in MODERN_PROTOCOL_VERSIONS:
            raise InputNeeded(pending)
        try:
            said = await self._call.session.elicit_form(
                pending.message(), SCHEMA, self._call.request_id
            )
        except MCPError:
            # A client that cannot after all. Other ways to answer are open until the time is over.
            return
        settle(pending, said.action, said.content)


def needed(pending: Pending) -> wire.InputRequiredResult:
    """Return the answer to a call that sends its client to a person first."""
    params = wire.ElicitRequestFormParams(message=pending.message(), requested_schema=SCHEMA)
    return wire.InputRequiredResult(
        input_requests={_KEY: wire.ElicitRequest(params=params)}, request_state=pending.id
    )


def take_answer(pending: Pending, responses: wire.InputResponses | None) -> None:
    """Settle a question with what a client brought back; nothing brought is a no."""
    said = (responses or {}).get(_KEY)
    if isinstance(said, wire.ElicitResult):
        settle(pending, said.action, said.content)
    else:
        settle(pending, "cancel", None)
