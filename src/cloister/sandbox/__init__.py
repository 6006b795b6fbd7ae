"""The sandbox a user holds: run processes, move files, dial ports, end it."""

from __future__ import annotations

from cloister.sandbox.entries import Change, ChangeKind, Entry, Kind
from cloister.sandbox.files import Files
from cloister.sandbox.process import Process
from cloister.sandbox.sandbox import Sandbox

__all__ = ["Change", "ChangeKind", "Entry", "Files", "Kind", "Process", "Sandbox"]
