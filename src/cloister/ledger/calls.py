"""Entries of a server: what was asked of it, by whom, and how it answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cloister.ledger.payload import Payload
from cloister.ledger.text import Text


@dataclass(frozen=True, slots=True)
class Called(Payload):
    """One request that changed something or was refused; `path` is as the API writes it.

    `tenant` and `token` (its id, never its text) are missing where nobody was let in.
    """

    kind: ClassVar[str] = "server.called"
    method: Text
    path: Text
    status: int
    request: Text
    tenant: Text | None = None
    token: Text | None = None
    sandbox: Text | None = None

    def flood(self) -> str | None:
        """Count refusals together when there are too many; what was done is never folded."""
        return f"{self.status}" if self.is_refusal else None

    @property
    def is_refusal(self) -> bool:
        """Whether it was not done."""
        return self.status >= 400
