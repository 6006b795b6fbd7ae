"""Chooses how trees are kept here, by trying."""

from __future__ import annotations

from pathlib import Path

from cloister.store.driver import Driver
from cloister.store.plain import PlainDriver


def choose_driver(state: Path) -> Driver:
    """Return the best driver that works for this state directory."""
    return PlainDriver(state / "plain", "no btrfs")
