"""Decides what putting a sandbox's changes on a host tree would do, and what stands against it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from cloister.errors import Exhausted, RequestError
from cloister.model.changes import EntryType, escape, path_order
from cloister.store.changes.baseline import Baseline
from cloister.store.changes.host_tree import HostTree
from cloister.store.changes.mark import Mark, mark_of
from cloister.store.changes.recovery import recover
from cloister.store.changes.refusal import why_refused
from cloister.store.changes.scan import Found, View, reading, scan
from cloister.store.changes.standing import Standing, standing_of
from cloister.store.changes.stratum import (
    NO_SKELETON,
    SAME_OWNERS,
    Owners,
    Skeleton,
    Stratum,
    tree_of,
)

MAXIMUM_STEPS = 1_000_000


@dataclass(frozen=True, slots=True)
class Step:
    """One path of the host that becomes another: `before` and `after`, None for nothing."""

    path: bytes
    before: Mark | None
    after: Mark | None

    @property
    def makes_directory(self) -> bool:
        """Whether a directory stands there afterwards."""
        return self.after is not None and self.after.type is EntryType.DIRECTORY

    @property
    def had_directory(self) -> bool:
        """Whether a directory stood there."""
        return self.before is not None and self.before.type is EntryType.DIRECTORY

    def display(self) -> str:
        """Return one line that is safe on a terminal."""
        letter = "D" if self.after is None else "A" if self.before is None else "C"
        mark = self.after or self.before
        slash = "/" if mark is not None and mark.type is EntryType.DIRECTORY else ""
        arrow = f" -> {escape(mark.target)}" if mark is not None and mark.target else ""
        return f"{letter} {escape(self.path)}{slash}{arrow}"


@dataclass(frozen=True, slots=True)
class Objection:
    """A path that cannot be applied, and why."""

    path: bytes
    why: str

    def display(self) -> str:
        """Return one line that is safe on a terminal."""
        return f"{escape(self.path)}: {self.why}"


class Content(Protocol):
    """What is put in place: a file or a link, readable until the next one comes."""

    @property
    def type(self) -> EntryType: ...
    @property
    def mtime_ns(self) -> int: ...
    def read_link(self) -> bytes: ...
    def copy_to(self, target: int, size: int) -> None: ...


class Readable(Protocol):
    """Where changes are read from when they are put in place."""

    def contents(self) -> Iterator[tuple[bytes, Content]]:
        """Yield at least all that a plan puts in place, by path."""
        ...


# A path that may differ: what it was when the sandbox started, and what stands there now.
State = tuple[bytes, Mark | None, Standing | None]


@dataclass(frozen=True, slots=True)
class Origin:
    """The trees that changes come from; enough to read them a second time."""

    strata: tuple[Stratum, ...]
    skeleton: Skeleton
    owners: Owners
    below: bytes
    # With a baseline everything that is there counts, and not what differs from the layers.
    whole: bool

    def contents(self) -> Iterator[tuple[bytes, Content]]:
        """Yield what there is, to be read."""
        for path, found in self.scan():
            if found.now is not None:
                yield path, found.now

    def states(self, baseline: Baseline | None) -> Iterator[State]:
        """Yield each path that may differ."""
        if baseline is None:
            for path, found in self.scan():
                if found.change is not None:
                    past = None if found.past is None else mark_of(found.past)
                    yield path, past, _standing(found)
            return
        gone = set(baseline.marks)
        for path, found in self.scan():
            gone.discard(path)
            yield path, baseline.marks.get(path), _standing(found)
        for path in sorted(gone, key=path_order):
            yield path, baseline.marks[path], None

    def scan(self) -> Iterator[tuple[bytes, Found]]:
        """Yield what there is, with its path relative to the tree."""
        strata: Sequence[Stratum] = self.strata
        view = View(self.skeleton, self.owners, below=self.below, deep=True)
        if self.whole:
            strata = [
                replace(each, sealed=(*each.sealed, *each.lowers), lowers=()) for each in strata
            ]
            view = View(NO_SKELETON, self.owners, below=self.below)
        # With a baseline, all that is not found counts as deleted: the tree itself must be there.
        is_there = not self.whole
        for found in scan(strata, view):
            if found.path.startswith(self.below + b"/") and found.path != b"/":
                yield found.path[len(self.below) + 1 :], found
                continue
            is_there = found.now is not None and found.now.type is EntryType.DIRECTORY
            if not is_there:
                break
        if not is_there:
            raise RequestError(
                f"{escape(self.below)} is no directory inside; nothing can be applied from there"
            )


def _standing(found: Found) -> Standing | None:
    return None if found.now is None else standing_of(found.now)


@dataclass(frozen=True, slots=True)
class Plan:
    """What would happen to `directory`. With conflicts or refusals it is not performed as it is.

    `conflicts`: the host has changed too. `refused`: what a sandbox may not put on a host.
    """

    directory: Path
    identity: tuple[int, int]
    origin: Readable
    steps: tuple[Step, ...]
    conflicts: tuple[Objection, ...]
    refused: tuple[Objection, ...]

    def display(self) -> Iterator[str]:
        """Yield lines that show it, safe on a terminal."""
        for step in self.steps:
            yield step.display()
        for objection in self.conflicts:
            yield f"conflict: {objection.display()}"
        for objection in self.refused:
            yield f"refused: {objection.display()}"


def plan_apply(
    strata: Sequence[Stratum],
    directory: Path,
    skeleton: Skeleton = NO_SKELETON,
    owners: Owners = SAME_OWNERS,
    *,
    below: str | bytes,
    baseline: Baseline | None = None,
) -> Plan:
    """Compare what the sandbox made of the tree `below` with the host's `directory`.

    `baseline` is what that directory was when it was copied in. Without one, what the layers held
    below counts as what the host had, and where they held nothing the host must not have anything.
    Nothing is written, except that an earlier apply that was interrupted is undone first.
    Attributes and owners are not applied: what is new belongs to the caller.
    """
    origin = Origin(tuple(strata), skeleton, owners, tree_of(below), baseline is not None)
    return plan_states(origin.states(baseline), directory, origin)


def plan_states(states: Iterable[State], directory: Path, origin: Readable) -> Plan:
    """As `plan_apply`, of what somebody else has compared."""
    recover(directory)
    host = HostTree(directory)
    try:
        planner = _Planner(host)
        with reading(bytes(directory)):
            for path, before, now in states:
                planner.consider(path, before, now)
            planner.look_into_removed()
        return planner.plan(directory, origin)
    finally:
        host.close()


class _Planner:
    def __init__(self, host: HostTree) -> None:
        self._host = host
        self._steps: dict[bytes, Step] = {}
        self._conflicts: list[Objection] = []
        self._refused: list[Objection] = []
        self._refused_trees: set[bytes] = set()

    def consider(self, path: bytes, before: Mark | None, now: Standing | None) -> None:
        after = None if now is None else now.mark
        # Set-id bits are no part of a mark: none was copied in, so the sandbox has set them.
        if after == before and (now is None or not now.set_id):
            return
        if now is not None and (why := self._why_refused(path, now)) is not None:
            self._refused.append(Objection(path, why))
            if before is None or before.type is not EntryType.DIRECTORY:
                self._refused_trees.add(path)
            return
        try:
            host = self._host.mark(path)
        except PermissionError:
            self._conflicts.append(Objection(path, "the host's own may not be read"))
            return
        if host == after or _is_same_directory(host, before, after):
            return
        if host != before:
            self._conflicts.append(Objection(path, _why_conflict(host, before)))
        elif not self._has_directory(path):
            self._conflicts.append(Objection(path, "the host has no directory for it"))
        else:
            self._steps[path] = Step(path, before, after)
        if len(self._steps) + len(self._conflicts) + len(self._refused) > MAXIMUM_STEPS:
            raise Exhausted(f"more than {MAXIMUM_STEPS} changes to apply", limit="inodes")

    def _why_refused(self, path: bytes, now: Standing) -> str | None:
        if path.rpartition(b"/")[0] in self._refused_trees:
            return "its directory is refused"
        return why_refused(path, now)

    def _has_directory(self, path: bytes) -> bool:
        above = path.rpartition(b"/")[0]
        if (step := self._steps.get(above)) is None:
            return self._host.is_directory(above)
        # What goes together with its directory is still in it.
        return step.makes_directory or step.had_directory

    def look_into_removed(self) -> None:
        """Object to removing a directory in which the host has something of its own."""
        for step in list(self._steps.values()):
            if not step.had_directory or step.makes_directory:
                continue
            for name in self._host.names(step.path):
                path = step.path + b"/" + name
                inner = self._steps.get(path)
                if inner is None or inner.after is not None:
                    self._conflicts.append(
                        Objection(path, "the host has it in a directory that would be removed")
                    )

    def plan(self, directory: Path, origin: Readable) -> Plan:
        def in_order(objections: Iterable[Objection]) -> tuple[Objection, ...]:
            return tuple(sorted(objections, key=lambda each: path_order(each.path)))

        return Plan(
            directory=directory.absolute(),
            identity=self._host.identity,
            origin=origin,
            steps=tuple(self._steps[path] for path in sorted(self._steps, key=path_order)),
            conflicts=in_order(self._conflicts),
            refused=in_order(self._refused),
        )


def _is_same_directory(host: Mark | None, before: Mark | None, after: Mark | None) -> bool:
    """Whether a new directory is there already; its mode is then the host's."""
    marks = (host, after)
    return before is None and all(
        mark is not None and mark.type is EntryType.DIRECTORY for mark in marks
    )


def _why_conflict(host: Mark | None, before: Mark | None) -> str:
    if before is None:
        return "the host has something else there"
    return "removed on the host" if host is None else "changed on the host"
