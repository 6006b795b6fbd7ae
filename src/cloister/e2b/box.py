"""One live sandbox as a client of E2B knows it: its short id, its token, and what goes on in it."""

from __future__ import annotations

from dataclasses import dataclass

from cloister.e2b.derived import ACCESS, TRAFFIC, Derived
from cloister.e2b.interpreter.sessions import Sessions
from cloister.e2b.process_table import ProcessTable
from cloister.e2b.signature import Claim
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
    """What the endpoints of one sandbox share, and what opens them: a token for each key."""

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        id: str,
        terms: Terms,
        derived: Derived,
        most_upload_bytes: int,
        sessions: Sessions | None = None,
    ) -> None:
        self.sandbox = sandbox
        self.id = id
        self.terms = terms
        self.most_upload_bytes = most_upload_bytes
        self._derived = derived
        # The keys that were told what opens it: a signed URL does not say whose it is.
        self._told: set[str] = set()
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

    def token_for(self, key: str) -> str:
        """Return what opens all of it, for whoever came with a key."""
        self._told.add(key)
        return self._derived.make(key, self.id, ACCESS)

    def traffic_token_for(self, key: str) -> str | None:
        """Return what the servers inside are reached with, unless everybody reaches them."""
        if self.terms.is_open_to_traffic:
            return None
        return self._derived.make(key, self.id, TRAFFIC)

    async def key_of(self, token: str | None) -> str | None:
        """Return the key that a token was made from, if it opens all of it now."""
        return await self._derived.key_of(token, self.id, ACCESS)

    async def signer_of(self, claim: Claim) -> str | None:
        """Return the key with whose token a URL was signed, if that opens all of it now."""
        for key in self._told:
            if claim.is_signed_with(self._derived.make(key, self.id, ACCESS)):
                return key if await self._derived.opens(key) else None
        return None

    async def traffic_key_of(self, token: str | None) -> str | None:
        """Return the key that a token for the servers inside was made from, if it is valid now."""
        return await self._derived.key_of(token, self.id, TRAFFIC)

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
