"""Benches whose uppers come out of real overlay mounts, as root and as anybody else."""

from __future__ import annotations

import base64
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

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
        self._mounts = 0
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

    def read(self) -> dict[bytes, tuple[int, int, bytes, bytes]]:
        """All that is seen in the mounted overlay: type, mode, content or target, attribute."""
        answer = self._mounted(lambda merged: self._overlays.ask("read", at=merged))
        return decode_tree(answer["tree"])

    def _mounted(self, act: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        if not self.layers:
            self.layer()
        merged = self.directory / "merged"
        merged.mkdir(exist_ok=True)
        # A fresh one each time: what is left in the old one is not even its owner's to remove.
        self._mounts += 1
        work = self.directory / f"work-{self._mounts}"
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

    def whole(self, target: str = "/", first: int = 0) -> Stratum:
        """What was changed since the image, or since the layers before the one named."""
        lowers = (*reversed(self.layers[:first]), self.lower)
        return Stratum(target, self.upper, lowers, tuple(reversed(self.layers[first:-1])))


def decode_tree(tree: dict[str, Any]) -> dict[bytes, tuple[int, int, bytes, bytes]]:
    return {
        base64.b64decode(path): (kind, mode, base64.b64decode(data), base64.b64decode(xattr))
        for path, (kind, mode, data, xattr) in tree.items()
    }


@pytest.fixture(scope="session")
def read_tree(overlays: Overlays) -> Callable[[Path], dict[bytes, tuple[int, int, bytes, bytes]]]:
    """Reads a plain directory the way `Bench.read` reads an overlay."""
    return lambda path: decode_tree(overlays.ask("read", at=str(path))["tree"])


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
    # Some are too deep for Python to remove, some closed to everybody but the root in there.
    overlays.ask("shell", at="/", script=f"rm -rf '{top}'")


NAMES = [
    *(b"a", b"b", b"c", b"a b", b"a.d", b"-n", b"..x", b"\xff\xfe", b"n\nl", b'q"q', b"\xc3\xa4"),
    *(b"\\x41", b"\x1b[31m", b".wh.a", b"\xe2\x80\xae", b" ", b"tab\there"),
]
_names = st.sampled_from(NAMES) | st.binary(min_size=1, max_size=4).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
_paths = st.lists(_names, min_size=1, max_size=3).map(b"/".join)
_contents = st.sampled_from([b"", b"x\n", b"y\n", b"x\ny\n", b"\0bin", b"no newline"])
# A directory that its owner may not enter can be compared by root alone.
_modes = st.sampled_from([b"755", b"700", b"555", *([b"644", b"000"] if os.geteuid() == 0 else [])])
_edits = st.one_of(
    st.tuples(st.just("write"), _paths, _contents),
    st.tuples(st.just("mkdir"), _paths),
    st.tuples(st.just("mkdir"), _paths),
    st.tuples(st.just("remove"), _paths),
    st.tuples(st.just("symlink"), _paths, _names),
    st.tuples(st.just("chmod"), _paths, _modes),
    st.tuples(st.just("touch"), _paths),
    st.tuples(st.just("link"), _paths, _names),
    st.tuples(st.just("move"), _paths, _names),
    st.tuples(st.just("fifo"), _paths),
    st.tuples(st.just("xattr"), _paths, _contents),
)
EDITS = st.lists(_edits, max_size=14)


@pytest.fixture(scope="session")
def edits() -> st.SearchStrategy[list[tuple[str, *tuple[bytes, ...]]]]:
    """Edits of a tree, possible and impossible, with names of every kind."""
    return EDITS


@pytest.fixture
def bench(make_bench: Callable[[], Bench]) -> Bench:
    return make_bench()
