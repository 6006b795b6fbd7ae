"""Host ids: each sandbox has its own, nobody has host id 0, and what is given back is reused."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from cloister import Exhausted
from cloister.model import User
from cloister.runtime.namespace import ids
from cloister.runtime.namespace.ids import (
    RANGE,
    STORE_SLICE,
    IdPool,
    inside,
    outside,
    root_map,
    single_map,
    slice_map,
)


def test_ranges_do_not_meet_and_never_hold_host_id_0(tmp_path: Path) -> None:
    pool = IdPool.of_root(tmp_path / "ids")
    firsts = sorted(pool.take() for _ in range(100))
    assert all(later - earlier >= RANGE for earlier, later in itertools.pairwise(firsts))
    assert firsts[0] > 0x1000_0000
    assert firsts[-1] + RANGE <= 0x8000_0000
    pool.close()


def test_two_pools_share_without_meeting(tmp_path: Path) -> None:
    one, two = IdPool.of_root(tmp_path / "ids"), IdPool.of_root(tmp_path / "ids")
    assert not {one.take() for _ in range(50)} & {two.take() for _ in range(50)}
    one.close()
    two.close()


def test_what_is_given_back_is_given_out_again(tmp_path: Path) -> None:
    pool = IdPool.of_person(tmp_path / "ids", 1024)
    taken = {pool.take() for _ in range(3)}
    with pytest.raises(Exhausted) as raised:
        pool.take()
    assert raised.value.limit == "ids"
    pool.give_back(min(taken))
    assert pool.take() == min(taken)
    pool.close()


def test_a_persons_slices_stay_in_their_range(tmp_path: Path) -> None:
    pool = IdPool.of_person(tmp_path / "ids", RANGE)
    firsts = []
    with pytest.raises(Exhausted):
        while True:
            firsts.append(pool.take())
    assert len(set(firsts)) == 255
    # In the launcher's namespace 0 is the person, and the sub-ids are 1 to 65536; the first slice
    # is that of the store.
    assert min(firsts) == STORE_SLICE + 256 == 257
    assert max(firsts) + 256 - 1 <= RANGE
    pool.close()


def test_a_whole_range_has_every_id() -> None:
    ranges = root_map(1_000_000)
    assert outside(ranges, 0) == 1_000_000
    assert outside(ranges, 65_535) == 1_065_535
    assert outside(ranges, 65_536) is None


@pytest.mark.parametrize("own", [None, 0, 7, 1000, 5000])
def test_a_slice_maps_each_id_once(own: int | None) -> None:
    ranges = slice_map(1, own)
    ids = [0, 1, 100, 253, 1000, 65_534] + ([] if own is None else [own])
    found = [outside(ranges, id) for id in dict.fromkeys(ids)]
    assert None not in found
    assert len(set(found)) == len(found)
    # 0 is the person's own id one namespace up: only what was named may be it.
    owners = [id for id in dict.fromkeys(ids) if outside(ranges, id) == 0]
    assert owners == ([] if own is None else [own])
    assert not inside(ranges, 2000)


def test_a_single_id_is_the_only_one() -> None:
    uids, gids = single_map(User(1000, 1000))
    assert (outside(uids, 1000), outside(gids, 1000)) == (0, 0)
    assert not inside(uids, 0)


@pytest.mark.parametrize(("uid", "has_range", "is_refused"), [(0, 0, 0), (1, 1, 0), (1, 0, 1)])
def test_a_wall_with_ids_of_its_own_is_for_root_and_whoever_has_a_range(
    uid: int, has_range: int, is_refused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    found = ids.SubIds(((1, 1024),), ((1, 1024),), "newuidmap", "newgidmap")
    monkeypatch.setattr(ids, "find_sub_ids", lambda: found if has_range else None)
    assert ("/etc/subuid" in (ids.why_no_range() or "")) == bool(is_refused)
