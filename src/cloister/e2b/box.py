"""One live sandbox as a client of E2B knows it: its short id, its token, and what goes on in it."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from cloister.e2b.interpreter.sessions import Sessions
from cloister.e2b.process_table import ProcessTable
from cloister.e2b.watches import Watches
from cloister.errors import RequestError
from cloister.model import SandboxId, parse_sandbox_id
from cloister.sandbox import Sandbox

_PREFIX = "sb_"


@dataclass(frozen=True, slots=True)
class Terms:
    """What was asked for when it was created, as it is remembered with it."""

    template: str
    is_paused_at_end: bool = False
    # Of a pause at its end: whether programs and their memory are given up.
    forgets_memory: bool = False
    is_resumed_by_traffic: bool = False
    is_open_to_traffic: bool = True
    masked_host: str | None = None
    # What clients see of the network they asked for, as JSON; None if they asked for nothing.
    network: str | None = None
    internet: bool | None = None


class Box:
    """What the endpoints of one sandbox share. `token` opens all of them."""

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        id: str,
        terms: Terms,
        token: str,
        traffic_token: str,
        most_upload_bytes: int,
        sessions: Sessions | None = None,
    ) -> None:
        self.sandbox = sandbox
        self.id = id
        self.terms = terms
        self.most_upload_bytes = most_upload_bytes
        self.token = token
        self.traffic_token = None if terms.is_open_to_traffic else traffic_token
        self.variables = variables_of(sandbox, id, terms.template)
        self.processes = ProcessTable(sandbox, self.variables)
        self.watches = Watches(sandbox)
        self.sessions = sessions or Sessions(sandbox, self.variables)
        # Whether any file was ever given metadata: it is dear to read, and most have none.
        self.has_metadata = False

    @property
    def may_have_metadata(self) -> bool:
        """Whether a file may have metadata: by an upload, or by a program that has run inside."""
        return self.has_metadata or self.processes.has_started

    def is_opened_by(self, token: str | None) -> bool:
        """Whether this is its token, compared in constant time."""
        return token is not None and hmac.compare_digest(
            token.encode("utf-8", "replace"), self.token.encode()
        )

    def lets_traffic(self, token: str | None) -> bool:
        """Whether whoever has this token may reach the servers inside."""
        if self.traffic_token is None:
            return True
        return token is not None and hmac.compare_digest(
            token.encode("utf-8", "replace"), self.traffic_token.encode()
        )

    async def close(self) -> None:
        """Let go of what follows its programs; the sandbox itself is ended by its owner."""
        await self.sessions.close()
        await self.watches.close()
        await self.processes.close()


def variables_of(sandbox: Sandbox, id: str, template: str) -> dict[str, str]:
    """Return what every program in a sandbox has in its environment."""
    known = {"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": id, "E2B_TEMPLATE_ID": template}
    return {**known, **sandbox.policy.env}


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
