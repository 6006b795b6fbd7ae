"""What this host can enforce, found out by trying it."""

from __future__ import annotations

from cloister.doctor.examine import Report, examine
from cloister.doctor.finding import Finding, State

__all__ = ["Finding", "Report", "State", "examine"]
