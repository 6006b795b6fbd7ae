"""Puts planned changes on a host tree, all of them or none, whatever happens in between."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import CloisterError, Exhausted, GuestError, HostError, RequestError
from cloister.model.changes import EntryType, escape
from cloister.store.changes.arrange import arrange
from cloister.store.changes.deeds import do
from cloister.store.changes.extents import digest
from cloister.store.changes.host_tree import HostTree
from cloister.store.changes.plan import Content, Objection, Plan, Step
from cloister.store.changes.recovery import go_back, recover_staging
from cloister.store.changes.staging import Staging, open_staging

_SHOWN_OBJECTIONS = 5


@dataclass(frozen=True, slots=True)
class Applied:
    """How many paths were changed, and how many were refused and left out."""

    steps: int
    left_out: int


def perform(plan: Plan, *, leave_out_refused: bool = False) -> Applied:
    """Do what the plan says. After any error, and after a crash at the next call, nothing is done.

    Everything is written beside its place, brought to disk, and only then moved there; a journal
    says how to go back. The host is looked at again first: it must still be as planned.
    """
    _require_agreed(plan, leave_out_refused)
    tree = HostTree(plan.directory)
    try:
        if tree.identity != plan.identity:
            raise RequestError(f"{plan.directory} is another directory now; plan again")
        staging = open_staging(tree.top, plan.directory, make=True)
        if staging is None:
            raise HostError(f"{plan.directory} was removed")
        try:
            if recover_staging(tree, staging, plan.directory):
                # What the plan found done already is undone now.
                _clean_up(tree, staging)
                raise RequestError(
                    f"an earlier apply to {plan.directory} was interrupted and has been undone; "
                    "plan again"
                )
            _apply(plan, tree, staging)
            return Applied(len(plan.steps), len(plan.refused))
        finally:
            staging.close()
    finally:
        tree.close()


def _require_agreed(plan: Plan, leave_out_refused: bool) -> None:
    if plan.conflicts:
        raise RequestError(f"not applied, the host has changed too: {_list(plan.conflicts)}")
    if plan.refused and not leave_out_refused:
        raise RequestError(
            f"not applied, this may not be put on a host: {_list(plan.refused)}; "
            "leave it out, or change it inside"
        )


def _list(objections: tuple[Objection, ...]) -> str:
    shown = ", ".join(f"{each.display()}" for each in objections[:_SHOWN_OBJECTIONS])
    more = len(objections) - _SHOWN_OBJECTIONS
    return f"{shown} and {more} more" if more > 0 else shown


def _apply(plan: Plan, tree: HostTree, staging: Staging) -> None:
    try:
        _stage(plan, staging)
        deeds = list(arrange(plan, tree, staging))
        staging.write_journal(b"".join(deed.line() for deed in deeds))
    except BaseException as error:
        _clean_up(tree, staging)
        raise _explain(error, plan.directory) from error
    try:
        for deed in deeds:
            do(deed, tree, staging)
        staging.finish()
    except BaseException as error:
        staging.unfinish()
        go_back(deeds, tree, staging, plan.directory)
        _clean_up(tree, staging)
        raise _explain(error, plan.directory) from error
    _clean_up(tree, staging)


def _clean_up(tree: HostTree, staging: Staging) -> None:
    # All is done or undone already; what cannot be removed now is removed by the next apply.
    with suppress(OSError):
        staging.remove(tree.top)


def _explain(error: BaseException, directory: Path) -> BaseException:
    if not isinstance(error, OSError):
        return error
    words = f"not applied, {directory} is as it was: {error.strerror}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Exhausted(f"{words}; make room there", limit="disk")
    return HostError(words)


def _stage(plan: Plan, staging: Staging) -> None:
    """Write all that is new beside its place, named by the number of its step."""
    wanted = {
        step.path: (number, step)
        for number, step in enumerate(plan.steps)
        if step.after is not None and not step.makes_directory
    }
    missing = set(wanted)
    for path, content in plan.origin.contents() if wanted else ():
        if path in wanted:
            number, step = wanted[path]
            _stage_one(content, step, staging, staging.name(number))
            missing.discard(path)
    if missing:
        raise _changed_since(min(missing))


def _changed_since(path: bytes) -> CloisterError:
    return GuestError(f"{escape(path)} was changed inside since it was shown; plan again")


def _stage_one(now: Content, step: Step, staging: Staging, name: bytes) -> None:
    after = step.after
    if after is None or now.type is not after.type:
        raise _changed_since(step.path)
    if now.type is EntryType.LINK:
        if now.read_link() != after.target:
            raise _changed_since(step.path)
        os.symlink(after.target, name, dir_fd=staging.new)
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    target = os.open(name, flags, 0o600, dir_fd=staging.new)
    try:
        now.copy_to(target, after.size)
        # Read back: what is put in place is what was shown, or nothing is.
        if digest(target, after.size) != after.digest:
            raise _changed_since(step.path)
        os.fchmod(target, after.mode & 0o777)
        os.utime(target, ns=(now.mtime_ns, now.mtime_ns))
    finally:
        os.close(target)
