"""What the server remembers across restarts: tokens, sandboxes, and answers already given."""

from __future__ import annotations

from cloister.server.records.database import Records
from cloister.server.records.rows import SandboxRow, TokenRow

__all__ = ["Records", "SandboxRow", "TokenRow"]
