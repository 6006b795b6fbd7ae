"""The ways to build a wall. Each runtime passes the same contract tests."""

from __future__ import annotations

from cloister.runtime.base import Guest, Posture, Runtime
from cloister.runtime.plan import Plan

__all__ = ["Guest", "Plan", "Posture", "Runtime"]
