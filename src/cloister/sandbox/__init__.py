"""The sandbox a user holds: run processes, move files, dial ports, end it."""

from __future__ import annotations

from cloister.sandbox.files import Change, Entry, Files
from cloister.sandbox.process import Process
from cloister.sandbox.sandbox import Sandbox

__all__ = ["Change", "Entry", "Files", "Process", "Sandbox"]
