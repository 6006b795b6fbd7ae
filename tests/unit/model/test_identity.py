"""Ids, users and trust: who and what a sandbox is."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from cloister.errors import RequestError
from cloister.model import Trust, User, new_sandbox_id, parse_sandbox_id, parse_user


def test_new_ids_differ_and_are_one_plain_name() -> None:
    ids = {new_sandbox_id() for _ in range(1000)}
    assert len(ids) == 1000
    for each in ids:
        assert len(each) == 29
        assert parse_sandbox_id(each) == each
        assert PurePosixPath(each).name == each


@pytest.mark.parametrize(
    "value",
    ["", "sb_", "sb_" + "a" * 25, "sb_" + "a" * 27, "sb_" + "A" * 26, "sb_" + "1" * 26,
     "sn_" + "a" * 26, "sb_../" + "a" * 23, "sb_" + "a" * 26 + "\n", None, 3, b"sb_"],
)  # fmt: skip
def test_what_is_no_sandbox_id_is_refused(value: object) -> None:
    with pytest.raises(RequestError, match=r"^sandbox id is "):
        parse_sandbox_id(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("user", (1000, 1000)),
        ("root", (0, 0)),
        ("nobody", (65534, 65534)),
        (1000, (1000, 1000)),
        (0, (0, 0)),
        (65535, (65535, 65535)),
        ("33", (33, 33)),
        ("1000:33", (1000, 33)),
        (User(5, 6), (5, 6)),
    ],
)
def test_users_are_read_by_name_and_number(value: object, expected: tuple[int, int]) -> None:
    assert parse_user(value) == expected


@pytest.mark.parametrize(
    "value",
    ["", "daemon", "Root", ":", "1000:", ":1000", "1:2:3", "-1", "65536", "1:65536", "99999999",
     -1, 65536, 10**400, 1.0, True, None, (1, 2), b"root", "1000 ", "\u0661"],
)  # fmt: skip
def test_any_other_user_is_refused(value: object) -> None:
    with pytest.raises(RequestError, match=r"^user is "):
        parse_user(value)


def test_a_stronger_wall_covers_all_weaker_needs() -> None:
    covered = {(have, need) for have in Trust for need in Trust if have.covers(need)}
    assert covered == {
        (Trust.INTERNAL, Trust.INTERNAL),
        (Trust.UNTRUSTED, Trust.INTERNAL),
        (Trust.UNTRUSTED, Trust.UNTRUSTED),
        (Trust.HOSTILE, Trust.INTERNAL),
        (Trust.HOSTILE, Trust.UNTRUSTED),
        (Trust.HOSTILE, Trust.HOSTILE),
    }
