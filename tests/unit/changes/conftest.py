"""Benches whose uppers come out of real overlay mounts, as root and as anybody else."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cloister.store.changes import Stratum

_WORKER = Path(__file__).parent / "overlay_worker.py"


class Overlays:
    """A process in a mount namespace of its own, and for an ordinary user in a user namespace."""

    def __init__(self) -> None:
        own = ["-m"] if os.geteuid() == 0 else ["-U", "-r", "-m"]
        self._process = subprocess.Popen(
            ["unshare", *own, "--propagation", "private", sys.executable, str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, do: str, **words: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **words}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert not answer.get("error"), answer
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


class Bench:
    """A chain of layers, the last of them the upper; each is edited through its overlay."""

    def __init__(self, directory: Path, overlays: Overlays) -> None:
        self.directory = directory
        self._overlays = overlays
        self.layers: list[Path] = []
        self.lower = directory / "image"
        self.lower.mkdir(parents=True)

    def layer(self) -> Path:
        """Put a fresh upper on top of everything; what was the upper is a lower now."""
        path = self.directory / f"layer-{len(self.layers)}"
        path.mkdir()
        self.layers.append(path)
        return path

    @property
    def upper(self) -> Path:
        return self.layers[-1]

    def run(self, script: str) -> None:
        """Run a shell script in the mounted overlay."""
        answer = self._mounted(lambda merged: self._overlays.ask("shell", at=merged, script=script))
        assert answer["status"] == 0, answer

    def edit(self, edits: list[tuple[str, *tuple[bytes, ...]]]) -> None:
        """Make edits in the mounted overlay, each if it is possible."""
        encoded = [[verb, *(base64.b64encode(w).decode() for w in words)] for verb, *words in edits]
        self._mounted(lambda merged: self._overlays.ask("edit", at=merged, edits=encoded))

    def keep_merged(self, target: Path) -> None:
        """Copy what the sandbox would see to a plain directory."""
        self._mounted(
            lambda merged: self._overlays.ask("shell", at=merged, script=f"cp -a . '{target}'")
        )

    def _mounted(self, act: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        if not self.layers:
            self.layer()
        merged, work = self.directory / "merged", self.directory / "work"
        merged.mkdir(exist_ok=True)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        below = [str(path) for path in (*reversed(self.layers[:-1]), self.lower)]
        self._overlays.ask(
            "mount", lowers=below, upper=str(self.upper), work=str(work), target=str(merged)
        )
        try:
            return act(str(merged))
        finally:
            self._overlays.ask("unmount", target=str(merged))

    def stratum(self, target: str = "/") -> Stratum:
        """What was changed since the layer below the upper."""
        return Stratum(target, self.upper, (*reversed(self.layers[:-1]), self.lower))

    def whole(self, target: str = "/") -> Stratum:
        """What was changed since the image."""
        return Stratum(target, self.upper, (self.lower,), tuple(reversed(self.layers[:-1])))


@pytest.fixture(scope="session")
def overlays() -> Iterator[Overlays]:
    found = Overlays()
    yield found
    found.close()


@pytest.fixture(scope="session")
def make_bench(
    overlays: Overlays, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Bench]]:
    """Makes benches, for tests that need one for each generated example."""
    top = tmp_path_factory.mktemp("benches")
    # Overlay options take no colons and commas, which a temporary directory may not have either.
    numbers = itertools.count()
    yield lambda: Bench(top / str(next(numbers)), overlays)
    # Some are too deep for Python to remove.
    subprocess.run(["rm", "-rf", str(top)], check=True)


@pytest.fixture
def bench(make_bench: Callable[[], Bench]) -> Bench:
    return make_bench()
