"""Puts the steps of a plan in an order in which each can be done, on a host looked at again."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cloister.errors import RequestError
from cloister.model.changes import escape
from cloister.store.changes.deeds import MODE_MEANWHILE, Deed, Verb
from cloister.store.changes.host_tree import HostTree
from cloister.store.changes.plan import Plan, Step
from cloister.store.changes.staging import Staging


def arrange(plan: Plan, tree: HostTree, staging: Staging) -> Iterator[Deed]:
    """Yield what to do: empty from the deepest up, fill from the top down, then set modes.

    A mode comes last, because a directory may get one that lets nobody write into it.
    """
    found = [_look(step, tree) for step in plan.steps]
    numbered = list(enumerate(zip(plan.steps, found, strict=True)))
    for number, (step, old) in reversed(numbered):
        if old is not None and (step.after is None or step.had_directory != step.makes_directory):
            yield _remove(step, number, old)
    for number, (step, old) in numbered:
        if step.makes_directory and not step.had_directory:
            yield Deed(Verb.MAKE_DIRECTORY, step.path, number)
        elif step.after is not None and not step.makes_directory:
            yield _place(step, number, None if step.had_directory else old, staging)
    for number, (step, old) in reversed(numbered):
        if step.makes_directory and step.after is not None:
            kept = old.st_mode & 0o7777 if old is not None and step.had_directory else None
            yield Deed(
                Verb.SET_MODE,
                step.path,
                number,
                # The host's own set-group-id and sticky bits stay.
                mode=step.after.mode | (0 if kept is None else kept & 0o7000),
                old_mode=MODE_MEANWHILE if kept is None else kept,
            )


def _look(step: Step, tree: HostTree) -> os.stat_result | None:
    status = tree.status(step.path)
    if tree.mark(step.path) != step.before:
        raise RequestError(
            f"not applied: {escape(step.path)} was changed on the host since it was shown"
        )
    return status


def _remove(step: Step, number: int, old: os.stat_result) -> Deed:
    if not step.had_directory:
        return Deed(
            Verb.REMOVE,
            step.path,
            number,
            old_inode=old.st_ino,
            old_mtime_ns=old.st_mtime_ns,
        )
    return Deed(
        Verb.REMOVE_DIRECTORY,
        step.path,
        number,
        old_inode=old.st_ino,
        old_mode=old.st_mode & 0o7777,
        uid=old.st_uid,
        gid=old.st_gid,
    )


def _place(step: Step, number: int, old: os.stat_result | None, staging: Staging) -> Deed:
    new = os.stat(staging.name(number), dir_fd=staging.new, follow_symlinks=False)
    return Deed(
        Verb.CREATE if old is None else Verb.REPLACE,
        step.path,
        number,
        inode=new.st_ino,
        mtime_ns=new.st_mtime_ns,
        old_inode=0 if old is None else old.st_ino,
        old_mtime_ns=0 if old is None else old.st_mtime_ns,
    )
