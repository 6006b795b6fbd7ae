"""Whatever was edited through an overlay, the walk says what a look before and after says."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from cloister.store.changes import (
    Aspect,
    Change,
    ChangeKind,
    EntryType,
    Stratum,
    path_order,
    walk,
)

if TYPE_CHECKING:
    from conftest import Bench

Tree = dict[bytes, tuple[int, int, bytes, bytes]]


@given(st.data())
def test_the_walk_agrees_with_a_look_before_and_after(
    make_bench: Callable[[], Bench], edits: Any, data: st.DataObject
) -> None:
    bench = make_bench()
    bench.edit(data.draw(edits))
    image = bench.read()
    bench.layer()
    bench.edit(data.draw(edits))
    before = bench.read()
    bench.layer()
    bench.edit(data.draw(edits))
    after = bench.read()

    assert said(walk([bench.stratum()], deep=True)) == expected(before, after)
    assert said(walk([bench.whole(first=1)], deep=True)) == expected(image, after)
    shallow = [change.path for change in walk([bench.whole(first=1)])]
    assert shallow == sorted(shallow, key=path_order)
    assert set(shallow) == {
        path for path, *_ in expected(image, after) if not below_deleted(path, image, after)
    }


@given(st.data())
def test_two_moments_of_one_upper_are_compared_exactly(
    make_bench: Callable[[], Bench], edits: Any, data: st.DataObject
) -> None:
    bench = make_bench()
    bench.edit(data.draw(edits))
    bench.layer()
    bench.edit(data.draw(edits))
    before, then = bench.read(), copy_of(bench.upper)
    bench.edit(data.draw(edits))
    after = bench.read()
    since = replace(bench.stratum(), then=(then,))
    assert said(walk([since], deep=True)) == expected(before, after)
    back = replace(since, upper=then, then=(bench.upper,))
    assert said(walk([back], deep=True)) == expected(after, before)


@given(st.data())
def test_a_sealed_moment_is_compared_exactly_and_so_is_another_branch(
    make_bench: Callable[[], Bench], edits: Any, data: st.DataObject
) -> None:
    bench = make_bench()
    bench.edit(data.draw(edits))
    image = (bench.upper, bench.lower)
    bench.layer()
    bench.edit(data.draw(edits))
    before, sealed = bench.read(), bench.upper
    bench.layer()
    bench.edit(data.draw(edits))
    after, one = bench.read(), bench.upper
    since = Stratum("/", one, image, (sealed,), then=(sealed,))
    assert said(walk([since], deep=True)) == expected(before, after)
    # Another that went on from the same moment.
    bench.layers.pop()
    (bench.directory / "other").mkdir()
    bench.layers.append(bench.directory / "other")
    bench.edit(data.draw(edits))
    other = bench.read()
    across = Stratum("/", bench.upper, image, (sealed,), then=(one, sealed))
    assert said(walk([across], deep=True)) == expected(after, other)


def copy_of(upper: Path) -> Path:
    """Return a copy of an upper, as a snapshot of the filesystem would be one."""
    target = upper.parent / "then"
    subprocess.run(["cp", "-a", "--no-target-directory", upper, target], check=True)
    return target


def said(changes: Any) -> list[tuple[bytes, str, str, frozenset[str]]]:
    found: list[Change] = list(changes)
    assert [change.path for change in found] == sorted(
        (change.path for change in found), key=path_order
    )
    return [(c.path, str(c.kind), str(c.type), frozenset(map(str, c.aspects))) for c in found]


def expected(before: Tree, after: Tree) -> list[tuple[bytes, str, str, frozenset[str]]]:
    found = []
    for path in sorted(before.keys() | after.keys(), key=path_order):
        old, new = before.get(path), after.get(path)
        if new is None and old is not None:
            found.append((path, "deleted", TYPES[old[0]], frozenset[str]()))
        elif old is None and new is not None:
            found.append((path, "added", TYPES[new[0]], frozenset[str]()))
        elif old is not None and new is not None and (aspects := differences(old, new)):
            found.append((path, "changed", TYPES[new[0]], frozenset(aspects)))
    return found


def differences(old: tuple[int, int, bytes, bytes], new: tuple[int, int, bytes, bytes]) -> set[str]:
    found = set()
    if old[1] != new[1] and new[0] != stat.S_IFLNK:
        found.add(str(Aspect.MODE))
    if old[0] != new[0]:
        return found | {str(Aspect.TYPE)}
    if old[2] != new[2]:
        found.add(str(Aspect.LINK if new[0] == stat.S_IFLNK else Aspect.CONTENT))
    if old[3] != new[3]:
        found.add(str(Aspect.XATTRS))
    return found


def below_deleted(path: bytes, before: Tree, after: Tree) -> bool:
    """Whether the path went with a directory that is none any more."""
    if path in after:
        return False
    above = path.rpartition(b"/")[0]
    return bool(above) and (above not in after or after[above][0] != stat.S_IFDIR)


TYPES = {
    stat.S_IFREG: str(EntryType.FILE),
    stat.S_IFDIR: str(EntryType.DIRECTORY),
    stat.S_IFLNK: str(EntryType.LINK),
    stat.S_IFIFO: str(EntryType.FIFO),
}


@given(st.data())
def test_a_change_is_the_same_after_it_was_written_as_json(data: st.DataObject) -> None:
    names = st.binary(min_size=1).map(lambda name: b"/" + name)
    change = Change(
        path=data.draw(names),
        kind=data.draw(st.sampled_from(ChangeKind)),
        type=EntryType.LINK,
        aspects=data.draw(st.frozensets(st.sampled_from(Aspect))),
        mode=data.draw(st.none() | st.integers(0, 0o7777)),
        old_mode=data.draw(st.none() | st.integers(0, 0o7777)),
        old_type=data.draw(st.none() | st.sampled_from(EntryType)),
        uid=data.draw(st.none() | st.integers(0, 65_535)),
        target=data.draw(st.none() | names),
        hard_link=data.draw(st.none() | names),
    )
    assert Change.from_json(change.to_json()) == change
    assert change.display().isprintable()
