"""Whose a sandbox is, and what it was provided with for its way out, to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cloister.errors import CloisterError, RequestError
from cloister.model import SandboxId, quote
from cloister.policy import Egress

if TYPE_CHECKING:
    from cloister.node import Node
    from cloister.node.provisions import Provisions, ReadStored
    from cloister.policy import Policy
    from cloister.runtime.base import Guest
    from cloister.sandbox.recording import Recording
    from cloister.sandbox.state import State
    from cloister.sandbox.surroundings import Surroundings


class Provided:
    """Made when it first starts, the same when it goes on after a rewind, gone with it."""

    def __init__(self) -> None:
        # Reads secrets that the sandbox's owner has stored, where there is such a place.
        self.read_stored: ReadStored | None = None
        self._provisions: Provisions | None = None
        # Or what was read first could be handed over last.
        self.renewing = asyncio.Lock()
        # And of two policies the one that was asked for first could be in force last.
        self.changing = asyncio.Lock()

    async def ready(
        self, policy: Policy, sandbox: str, surroundings: Surroundings
    ) -> Provisions | None:
        """Return it, and tell the programs inside where it is; None where nothing is needed."""
        if not policy.has_depth:
            return None
        # Loaded by who needs it: most sandboxes have no rules on requests.
        from cloister.node.provisions import provide

        if self._provisions is None:
            self._provisions = await provide(policy, sandbox, self.read_stored)
        if self._provisions is not None:
            surroundings.provide(self._provisions.env)
        return self._provisions

    async def renew(self, policy: Policy) -> tuple[Provisions, list[CloisterError]]:
        """Read every value anew; also why some are there no more."""
        from cloister.node.provisions import renew

        if self._provisions is None:
            raise RequestError("it has no secrets; name them in its policy")
        self._provisions, failed = await renew(self._provisions, policy, self.read_stored)
        return self._provisions, failed

    def withdraw(self) -> Provisions:
        """Have no value any more, until they are read again."""
        from cloister.node.provisions import without_values

        if self._provisions is None:
            raise RequestError("it has no secrets; name them in its policy")
        self._provisions = without_values(self._provisions)
        return self._provisions

    @property
    def is_there(self) -> bool:
        """Whether its requests are read, and so by a gateway of their own."""
        return self._provisions is not None

    def require_read(self, policy: Policy) -> None:
        """Refuse rules on requests that cannot be read: what opens them was made at the start."""
        known = () if self._provisions is None else self._provisions.hosts
        for rule in () if policy.egress is None else policy.egress.rules:
            if rule.needs_depth and rule.host.host not in known:
                raise RequestError(
                    f"the rule {quote(rule.name)} is on requests to {rule.host.host}, of which no "
                    "rule or secret spoke at the start of the sandbox; start another one with it"
                )

    async def close(self) -> None:
        """Have revoked what was minted for it; raises if that failed."""
        provisions, self._provisions = self._provisions, None
        if provisions is not None:
            await provisions.close()


class Belonging:
    """The part of a sandbox that says whose it is, where several people share a process."""

    owner: str | None = None
    policy: Policy
    id: SandboxId
    _node: Node | None
    _provided: Provided
    _state: State

    if TYPE_CHECKING:

        def _running(self) -> Guest: ...

        @property
        def recording(self) -> Recording | None: ...

    async def renew_secrets(self) -> None:
        """Read all secrets from their sources again; from here on the old values are not used.

        What stands for them inside stays. Connections to hosts whose requests are read are cut. A
        secret that cannot be read is withdrawn: requests with it are refused, and this raises.
        """
        async with self._provided.renewing:
            self._running()
            provisions, failed = await self._provided.renew(self.policy)
            try:
                await self._record_renewal(provisions)
            except CloisterError:
                # No value is used of which it cannot be written that it is; an old one even less.
                await self._hand_over(self._provided.withdraw())
                raise
            await self._hand_over(provisions)
        if failed:
            raise failed[0]

    async def _hand_over(self, provisions: Provisions) -> None:
        if self._node is not None:
            await self._node.renew(self.id, provisions)

    async def _record_renewal(self, provisions: Provisions) -> None:
        if self.recording is not None:
            known = {each.name for each in provisions.values}
            named = [each.name for each in self.policy.secrets]
            await self.recording.secrets_renewed(
                tuple(name for name in named if name in known),
                tuple(name for name in named if name not in known),
            )

    async def update_egress(self, egress: Egress | Sequence[str]) -> None:
        """Replace what may be reached, from now on; what is open is cut, and is judged anew.

        It must have been started with a way out, which `egress=[]` gives too. Rules on requests are
        possible for hosts of which the rules or secrets of its start spoke.
        """
        wanted = egress if isinstance(egress, Egress) else Egress(egress)
        async with self._provided.changing:
            await self._change_egress(wanted)

    async def _change_egress(self, wanted: Egress) -> None:
        guest = self._running()
        if self.policy.egress is None or guest.doors is None:
            raise RequestError(
                "the sandbox was started without a way out; start it with egress=[], and it can "
                "be given one later"
            )
        policy = self.policy.replace(egress=wanted, ledger=self.policy.ledger)
        self._provided.require_read(policy)
        if self._node is not None:
            # Written before it is true: of what then leaves the ledger says why it may.
            if self.recording is not None:
                self.recording.egress_changed(policy)
            self.policy = policy
            self._state.forget_answers()
            await self._node.change_egress(self.id, policy, depth=self._provided.is_there)
            await self._state.change_egress(wanted)

    def belongs_to(self, owner: str, read_stored: ReadStored | None = None) -> None:
        """Say whose it is, and what reads the secrets that they have stored."""
        self.owner = owner
        self._provided.read_stored = read_stored
