"""What a person reads before something is put on the host hides nothing behind something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from cloister.cli.gates import plan_details
from cloister.store.changes import EntryType, Mark, Plan, Step


def test_what_programs_of_the_host_obey_is_not_pushed_out() -> None:
    mark = Mark(EntryType.FILE, 0o644)
    paths = [*(b"a%03d" % number for number in range(100)), b"sub/.envrc", b"z"]
    steps = tuple(Step(path, None, mark) for path in paths)
    plan = Plan(Path("/x"), (0, 0), cast(Any, None), steps, (), ())
    details = plan_details(plan)
    assert details[:3] == [
        ("steps", "102"),
        ("obeyed by programs of the host", "1"),
        ("obeyed step", "A sub/.envrc"),
    ]
    assert len(details) < 40
    plain = plan_details(Plan(Path("/x"), (0, 0), cast(Any, None), steps[:2], (), ()))
    assert plain == [("steps", "2"), ("step", "A a000"), ("step", "A a001")]
