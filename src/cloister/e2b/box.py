"""One live sandbox as a client of E2B knows it: its short id, its token, and what goes on in it."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from cloister.e2b.interpreter.sessions import Sessions
from cloister.e2b.process_table import ProcessTable
from cloister.e2b.watches import Watches
from cloister.errors import RequestError
from cloister.model import SandboxId, parse_sandbox_id
from cloister.sandbox import Sandbox

_PREFIX = "sb_"


class Box:
    """What the endpoints of one sandbox share. `token` opens all of them."""

    def __init__(
        self, sandbox: Sandbox, *, template: str, token: str, variables: Mapping[str, str]
    ) -> None:
        self.sandbox = sandbox
        self.id = public_id(sandbox.id)
        self.template = template
        self.token = token
        self.variables = {
            "E2B_SANDBOX": "true",
            "E2B_SANDBOX_ID": self.id,
            "E2B_TEMPLATE_ID": template,
            **variables,
        }
        self.processes = ProcessTable(sandbox, self.variables)
        self.watches = Watches(sandbox)
        self.sessions = Sessions(sandbox, self.variables)
        # Whether any file was ever given metadata: it is dear to read, and most have none.
        self.has_metadata = False

    def is_opened_by(self, token: str | None) -> bool:
        """Whether this is its token, compared in constant time."""
        return token is not None and hmac.compare_digest(token.encode(), self.token.encode())

    async def close(self) -> None:
        """Let go of what follows its programs; the sandbox itself is ended by its owner."""
        await self.sessions.close()
        await self.watches.close()
        await self.processes.close()


def public_id(id: str) -> str:
    """Return the id as one DNS label: letters and digits, no underscore."""
    return "i" + id.removeprefix(_PREFIX)


def own_id(public: str) -> SandboxId | None:
    """Return the sandbox that a client's id can name; a tail after "-" is ignored."""
    label = public.partition("-")[0]
    if not label.startswith("i"):
        return None
    try:
        return parse_sandbox_id(_PREFIX + label[1:])
    except RequestError:
        return None
