"""Random sequences of everything that can be done with state, against a model that is a dict.

The sandboxes are owned by another process, which is killed now and then, also in the middle of
what it was told. Whatever it had said was done must be there afterwards, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cloister.store import Store

from .conftest import SYNCED, WALL

HERE = Path(__file__).parent
# Without root there is one driver less, and less to tell apart.
SHORT, LONG = 25 if os.geteuid() == 0 else 8, 500
if WALL == "microvm":
    SHORT, LONG = 4, 100
STEPS = 12
PATHS = ("a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "f", "f/a")
MOST_SANDBOXES = 4

Files = dict[str, str]
"""What is where: "/" for a directory, "-> x" for a link, else what is written in a file."""


@dataclass
class Box:
    """What is known of one sandbox."""

    files: Files = field(default_factory=dict)
    running: bool = True
    paused: bool = False
    busy: bool = False
    # The second is there where a kill left it open whether something had been done.
    or_else: Files | None = None


def put(files: Files, path: str, what: str) -> Files:
    """Return the files with this at that path, whatever is in the way."""
    parents = ["/".join(path.split("/")[:n]) for n in range(1, path.count("/") + 1)]
    made = without(files, path)
    for parent in parents:
        if made.get(parent) != "/":
            made[parent] = "/"
    return {**made, path: what}


def without(files: Files, path: str) -> Files:
    return {at: what for at, what in files.items() if at != path and not at.startswith(path + "/")}


def put_command(path: str, what: str) -> str:
    parents = ["/".join(path.split("/")[:n]) for n in range(1, path.count("/") + 1)]
    lines = [
        f"[ -d {each} -a ! -h {each} ] || {{ rm -f {each}; mkdir {each}; }}" for each in parents
    ]
    if what == "/":
        return "; ".join([*lines, f"rm -rf {path}; mkdir {path}"])
    if what.startswith("-> "):
        return "; ".join([*lines, f"rm -rf {path}; ln -s {what[3:]} {path}"])
    # A file that is there is written over, anything else is replaced.
    kept = f"[ -f {path} -a ! -h {path} ] || rm -rf {path}"
    return "; ".join([*lines, kept, f"echo {shlex.quote(what)} > {path}"])


LOOK = r"find . -mindepth 1 ! -name '.*' -printf '%y %P %l\n'; echo; grep -r '' . --exclude '.?*'"


def read_look(text: str) -> Files:
    entries, _, contents = text.partition("\n\n") if not text.startswith("\n") else ("", "", text)
    written = dict(line.removeprefix("./").split(":", 1) for line in contents.split())
    found: Files = {}
    for line in entries.splitlines():
        kind, path, target = line.split(" ", 2)
        found[path] = {"d": "/", "l": f"-> {target}"}.get(kind, written.get(path, ""))
    return found


class Nursery:
    """Starts owners by forking one that has everything loaded."""

    def __init__(self) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = [sys.executable, str(HERE / "owner_program.py"), str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(program, pass_fds=[theirs.fileno()])

    def start(self) -> Process:
        reading, told = os.pipe2(os.O_CLOEXEC)
        said, writing = os.pipe2(os.O_CLOEXEC)
        socket.send_fds(self._link, [b"start"], [reading, writing])
        os.close(reading)
        os.close(writing)
        return Process(self, int(self._link.recv(32)), told, said)

    def wait(self, pid: int) -> int:
        self._link.send(str(pid).encode())
        return int(self._link.recv(32))

    def close(self) -> None:
        self._link.close()
        assert self._process.wait(60) == 0


class Process:
    """The process that owns the sandboxes."""

    def __init__(self, nursery: Nursery, pid: int, told: int, said: int) -> None:
        self._nursery = nursery
        self._pid = pid
        self._told = os.fdopen(told, "w")
        self._said = os.fdopen(said)

    def ask(self, action: str, *arguments: Any, **named: Any) -> Any:
        self.tell(action, *arguments, **named)
        answer = json.loads(self._said.readline())
        if "error" in answer:
            raise AssertionError(f"{action} {arguments} {named}: {answer['error']}")
        return answer["value"]

    def tell(self, action: str, *arguments: Any, **named: Any) -> None:
        self._told.write(json.dumps([action, arguments, named]) + "\n")
        self._told.flush()

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self._end()

    def close(self) -> None:
        self._told.close()
        assert self._end() == 0

    def _end(self) -> int:
        status = self._nursery.wait(self._pid)
        with contextlib.suppress(BrokenPipeError):
            self._told.close()
        self._said.close()
        return status


class Machine(RuleBasedStateMachine):
    """What can happen, and what must be true then."""

    runs = 0

    def __init__(
        self, nursery: Nursery, store: Store, limits: dict[str, Any], freezes: bool
    ) -> None:
        super().__init__()
        Machine.runs += 1
        self.store = store
        self.limits = limits
        self.freezes = freezes
        self.boxes: dict[str, Box] = {}
        self.snapshots: dict[tuple[str, str], Files] = {}
        self.count = 0
        self.nursery = nursery
        self.owner = nursery.start()

    def name(self) -> str:
        self.count += 1
        return f"m{Machine.runs}-{self.count}"

    def running(self, where: Callable[[Box], bool] = lambda box: True) -> list[str]:
        return [name for name, box in self.boxes.items() if box.running and where(box)]

    def moving(self) -> list[str]:
        return self.running(lambda box: not box.paused)

    @initialize()
    def begin(self) -> None:
        self.open_new()

    @precondition(lambda self: len(self.boxes) < MOST_SANDBOXES)
    @rule()
    def open_new(self) -> None:
        name = self.name()
        self.owner.ask("open", name, keep=name, limits=self.limits)
        self.boxes[name] = Box()

    @precondition(lambda self: any(not box.running for box in self.boxes.values()))
    @rule(data=st.data())
    def open_again(self, data: st.DataObject) -> None:
        stopped = [name for name, box in self.boxes.items() if not box.running]
        self.reopen(data.draw(st.sampled_from(stopped)))

    def reopen(self, name: str) -> None:
        box = self.boxes[name]
        self.owner.ask("open", name, keep=name)
        box.running = True
        self.settle(name)

    def settle(self, name: str) -> None:
        """Look, and decide what a kill had left open."""
        box = self.boxes[name]
        _, text, _, _ = self.owner.ask("run", name, LOOK)
        found = read_look(text)
        assert found in (box.files, box.or_else), (name, found, box)
        box.files, box.or_else = found, None

    @precondition(lambda self: self.moving())
    @rule(
        data=st.data(),
        path=st.sampled_from(PATHS),
        what=st.sampled_from(["/", "-> a", "-> d/e", "one", "two", "three"]),
    )
    def write(self, data: st.DataObject, path: str, what: str) -> None:
        name = data.draw(st.sampled_from(self.moving()))
        code, _, words, _ = self.owner.ask("run", name, put_command(path, what) + SYNCED)
        assert code == 0, words
        self.boxes[name].files = put(self.boxes[name].files, path, what)

    @precondition(lambda self: self.moving())
    @rule(data=st.data(), path=st.sampled_from(PATHS))
    def remove(self, data: st.DataObject, path: str) -> None:
        name = data.draw(st.sampled_from(self.moving()))
        self.owner.ask("run", name, f"rm -rf {path}" + SYNCED)
        box = self.boxes[name]
        # Below a file or a link there is nothing to remove.
        parents = ["/".join(path.split("/")[:n]) for n in range(1, path.count("/") + 1)]
        if all(box.files.get(parent) == "/" for parent in parents):
            box.files = without(box.files, path)

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def snapshot(self, data: st.DataObject) -> None:
        name, tag = data.draw(st.sampled_from(self.running())), f"s{self.count}"
        self.count += 1
        self.owner.ask("snapshot", name, tag)
        self.snapshots[name, tag] = self.boxes[name].files

    @precondition(lambda self: self.snapshots and len(self.boxes) < MOST_SANDBOXES)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        sandbox, tag = data.draw(st.sampled_from(sorted(self.snapshots)))
        name = self.name()
        self.owner.ask("fork", f"{sandbox}@{tag}", name, keep=name)
        self.boxes[name] = Box(self.snapshots[sandbox, tag])
        self.settle(name)

    @precondition(lambda self: self.rewindable())
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        name, tag = data.draw(st.sampled_from(self.rewindable()))
        self.owner.ask("rewind", name, tag)
        box = self.boxes[name]
        box.files, box.paused, box.busy = self.snapshots[name, tag], False, False
        self.settle(name)

    def rewindable(self) -> list[tuple[str, str]]:
        return [each for each in sorted(self.snapshots) if each[0] in self.running()]

    @precondition(lambda self: self.freezes and self.running(lambda box: not box.busy))
    @rule(data=st.data())
    def keep_busy(self, data: st.DataObject) -> None:
        """From here on snapshots are of a sandbox that runs."""
        free = self.running(lambda box: not box.busy and not box.paused)
        if free:
            name = data.draw(st.sampled_from(free))
            self.owner.ask("start", name, "echo on; while :; do echo x > .new; done")
            self.boxes[name].busy = True

    @precondition(lambda self: self.freezes and self.running())
    @rule(data=st.data())
    def pause_or_resume(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.running()))
        box = self.boxes[name]
        self.owner.ask("resume" if box.paused else "pause", name)
        box.paused = not box.paused

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.running()))
        self.owner.ask("stop", name)
        self.boxes[name] = Box(self.boxes[name].files, running=False)

    @rule()
    def collect_elsewhere(self) -> None:
        self.store.collect()

    @rule()
    def kill(self) -> None:
        self.owner.kill()
        self.after_kill()

    def after_kill(self) -> None:
        for name, box in self.boxes.items():
            self.boxes[name] = Box(box.files, running=False, or_else=box.or_else)
        self.owner = self.nursery.start()

    @precondition(lambda self: self.moving())
    @rule(data=st.data(), what=st.sampled_from(["write", "snapshot", "rewind", "stop", "collect"]))
    def kill_during(self, data: st.DataObject, what: str) -> None:
        """Say what to do, and kill a moment later: it is done, or it is not."""
        name = data.draw(st.sampled_from(self.moving()))
        tags = [tag for box, tag in sorted(self.snapshots) if box == name]
        box, tag = self.boxes[name], f"s{self.count}"
        self.count += 1
        if what == "write":
            self.owner.tell("run", name, "echo new > .put; rm -rf a; mv .put a")
            box.or_else = put(box.files, "a", "new")
            # Between the two there is a moment without it.
            gone = without(box.files, "a")
        elif what == "snapshot":
            self.owner.tell("snapshot", name, tag)
        elif what == "rewind" and tags:
            self.owner.tell("rewind", name, tags[0])
            box.or_else = self.snapshots[name, tags[0]]
        else:
            self.owner.tell(what, *([name] if what == "stop" else []))
        # Any moment will do: the space of moments is what is searched here.
        time.sleep(random.random() * 0.03)
        self.owner.kill()
        self.after_kill()
        if what == "snapshot" and self.is_there(name, tag):
            self.snapshots[name, tag] = box.files
        if what == "write":
            self.settle_write(name, gone)

    def settle_write(self, name: str, gone: Files) -> None:
        self.owner.ask("open", name, keep=name)
        box = self.boxes[name]
        _, text, _, _ = self.owner.ask("run", name, "rm -f .put; " + LOOK)
        found = read_look(text)
        assert found in (box.files, box.or_else, gone), (found, box)
        self.boxes[name] = Box(found)

    def is_there(self, sandbox: str, tag: str) -> bool:
        return any(each.name == tag for each in self.store.snapshots.list(sandbox))

    def teardown(self) -> None:
        """Everything that is there is as it should be; then all of it is removed."""
        try:
            for name, box in self.boxes.items():
                if box.paused:
                    self.owner.ask("resume", name)
                if not box.running:
                    self.reopen(name)
                else:
                    self.settle(name)
            for (sandbox, tag), files in self.snapshots.items():
                name = self.name()
                self.owner.ask("fork", f"{sandbox}@{tag}", name)
                _, text, _, _ = self.owner.ask("run", name, LOOK)
                assert read_look(text) == files, (sandbox, tag)
                self.owner.ask("stop", name)
            self.owner.close()
        except BaseException:
            self.owner.kill()
            raise
        for name in self.boxes:
            self.store.kept.remove(name)
        found = self.store.snapshots.list()
        assert not [each for each in found if each.name is not None], found
        self.store.collect()


def play(store: Store, driver: str, freezes: bool, sequences: int) -> None:
    limits = {"disk": "unlimited"} if driver == "plain" else {}
    nursery = Nursery()
    run_state_machine_as_test(
        lambda: Machine(nursery, store, limits, freezes),
        settings=settings(
            max_examples=sequences,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            # A sequence that kills at random moments is not the same twice; shrinking would lie.
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )
    nursery.close()


@pytest.fixture
async def freezes(host: str, nothing_stays: None) -> bool:
    """Whether programs can be held still here."""
    from cloister import Sandbox

    async with Sandbox() as sandbox:
        groups = sandbox._running().groups
        return host == "root" or any((group / "cgroup.freeze").exists() for group in groups)


@pytest.mark.timeout(600)
def test_random_sequences_agree_with_a_simple_model(store, driver, freezes) -> None:
    play(store, driver, freezes, SHORT)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_five_hundred_random_sequences_agree_with_a_simple_model(store, driver, freezes) -> None:
    play(store, driver, freezes, LONG)
