"""Another state directory for as long as a case takes; machines keep their disks where they are."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from cloister.runtime.microvm.place import SETTING, machine_place


@contextlib.contextmanager
def state_in(directory: Path) -> Iterator[None]:
    """Keep what sandboxes leave behind in `directory`, which need not exist."""
    # A disk of the host's programs is no part of any case, and takes minutes to make.
    settings = {"CLOISTER_STATE": str(directory), SETTING: str(machine_place())}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
