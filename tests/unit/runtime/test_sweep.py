"""What a killed owner left in the runtime directory is gone after the next sweep, memory too."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from cloister.runtime.namespace.instance import sweep
from cloister.runtime.namespace.layout import find_layout


def test_memory_of_a_dead_owner_is_swept_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    for name in ("1-dead", "2-living"):
        (tmp_path / f"{name}.lock").write_text('{"groups": []}')
        for what in ("sb_a", "sb_a.saved", "snap-b.0123"):
            place = tmp_path / f"{name}.{what}.memory"
            place.mkdir()
            (place / "pages.img").write_bytes(b"what a program knew")
    with open(tmp_path / "2-living.lock", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert sweep(tmp_path, find_layout()) == ["1-dead"]
    left = sorted(os.listdir(tmp_path))
    assert left == [
        "2-living.lock",
        "2-living.sb_a.memory",
        "2-living.sb_a.saved.memory",
        "2-living.snap-b.0123.memory",
    ]
