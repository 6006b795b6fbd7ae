"""What of an error whoever asked may read."""

from __future__ import annotations

import contextvars

import pytest

from cloister.errors import (
    Busy,
    CannotEnforce,
    CloisterError,
    FileError,
    HostError,
    LaunchFailed,
    NotFound,
    RuntimeGone,
)
from cloister.sandbox.host_places import HIDDEN, told_of
from cloister.server.discretion import answer_owner, as_told
from cloister.store.place import state_directory

PLACE = f"{state_directory()}/trees/7"
FAILURES = [
    HostError(f"{PLACE} cannot be written"),
    HostError("mkfs.btrfs failed: /dev/loop7 is mounted"),
    LaunchFailed(f"{PLACE} is gone", step="root", hint=f"look at {PLACE}"),
    CannotEnforce("no memory limit", limit="memory", why=f"{PLACE} is full", enable=f"rm {PLACE}"),
    RuntimeGone(f"the launcher {PLACE} is gone"),
    NotFound(f"no {PLACE}", what=PLACE),
    Busy("another process has it", holder="4711"),
]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_nobody_but_the_owner_reads_where_things_lie(error: CloisterError) -> None:
    told = as_told(error, "rq_1")
    assert type(told) is type(error)
    for words in (str(told), repr(vars(told))):
        assert PLACE not in words and "/dev/loop7" not in words and "4711" not in words
    owners = contextvars.copy_context()
    owners.run(answer_owner, True)
    assert owners.run(as_told, error, "rq_1") is error


def test_what_is_about_the_inside_is_told_as_it_is() -> None:
    error = FileError("/root/.ssh/id is a directory", path="/root/.ssh/id", errno_name="EISDIR")
    assert as_told(error, "rq_1") is error


def test_a_record_of_a_failure_has_its_words_and_not_its_paths() -> None:
    assert told_of(HostError("runsc: /a/b.c: no room; make some")) == (
        f"runsc: {HIDDEN}: no room; make some"
    )
    assert told_of(NotFound("no /workspace/x inside", what="x")) == "no /workspace/x inside"
