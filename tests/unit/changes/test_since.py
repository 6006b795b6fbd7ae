"""What changed since an earlier moment: the same as a look then and a look now would say."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cloister.store.changes import patch, walk

if TYPE_CHECKING:
    from conftest import Bench


def copy_of(upper: Path, name: str) -> Path:
    """Return a copy of an upper, as a snapshot of the filesystem would be one."""
    target = upper.parent / name
    subprocess.run(["cp", "-a", "--no-target-directory", upper, target], check=True)
    return target


def test_nothing_is_said_where_nothing_happened_since(make_bench: Callable[[], Bench]) -> None:
    bench = make_bench()
    bench.run("mkdir -p a/b; echo one > a/b/file")
    bench.layer()
    bench.run("rm a/b/file; mkdir c; echo two > c/file")
    since = replace(bench.stratum(), then=(copy_of(bench.upper, "then"),))
    assert list(walk([since])) == []
    assert [change.display() for change in walk([bench.stratum()])] == [
        *("D /a/b/file", "A /c/", "A /c/file")
    ]


def test_a_patch_since_then_has_the_text_of_then(make_bench: Callable[[], Bench]) -> None:
    bench = make_bench()
    bench.run("mkdir w; printf 'one\\ntwo\\n' > w/file; echo same > w/same; echo gone > w/gone")
    then = copy_of(bench.upper, "then")
    bench.run("printf 'one\\n2\\n' > w/file; rm w/gone; echo new > w/new")
    text = b"".join(patch([replace(bench.stratum(), then=(then,))], below="/w")).decode()
    assert "-two\n+2\n" in text and "-gone\n" in text and "+new\n" in text
    assert "same" not in text
