"""Wrong input of any kind: an error of the right class, and a sandbox none the worse for it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cloister import (
    CloisterError,
    FileError,
    Limits,
    Mount,
    NotFound,
    PolicyError,
    RequestError,
    Sandbox,
    Unsupported,
)

HUGE = "x" * 100_000_000


@pytest.fixture
async def still_works(sandbox: Sandbox) -> Any:
    """Before and after: the same sandbox, the same files, no process more."""
    await sandbox.files.write("/workspace/kept", "kept")
    yield sandbox
    assert (await sandbox.run("cat /workspace/kept")).stdout == "kept"
    assert [entry.name for entry in await sandbox.files.list()] == ["kept"]
    assert (await sandbox.run("set -- /proc/[0-9]*; echo $#")).stdout.strip() in ("2", "3")


Attempt = Callable[[Sandbox], Awaitable[object]]

COMMANDS: dict[str, tuple[Attempt, type[CloisterError]]] = {
    "empty text": (lambda s: s.run(""), RequestError),
    "only spaces": (lambda s: s.run("  \n"), RequestError),
    "empty list": (lambda s: s.run([]), RequestError),
    "empty program": (lambda s: s.run([""]), RequestError),
    "bytes": (lambda s: s.run(b"true"), RequestError),
    "number": (lambda s: s.run(7), RequestError),
    "list of numbers": (lambda s: s.run(["echo", 7]), RequestError),
    "zero byte": (lambda s: s.run(["echo", "a\0b"]), RequestError),
    "100 MB of shell": (lambda s: s.run("echo " + HUGE), RequestError),
    "100 MB argument": (lambda s: s.run(["echo", HUGE]), RequestError),
    "100 MB in many arguments": (lambda s: s.run(["echo", *["x" * 1000] * 100_000]), RequestError),
    "a million arguments": (lambda s: s.run(["echo"] * 1_000_000), RequestError),
    "missing program": (lambda s: s.run(["no-such-program"]), NotFound),
    "a directory as program": (lambda s: s.run(["/workspace"]), RequestError),
    "a text as program": (lambda s: s.run(["/etc/hostname"]), RequestError),
    "env that is no mapping": (lambda s: s.run("true", env=["A=1"]), RequestError),
    "env with = in a name": (lambda s: s.run("true", env={"A=": "1"}), RequestError),
    "env with a number": (lambda s: s.run("true", env={"A": 1}), RequestError),
    "env of 100 MB": (lambda s: s.run("true", env={"A": HUGE}), RequestError),
    "unknown user": (lambda s: s.run("true", user="rooot"), RequestError),
    "negative user": (lambda s: s.run("true", user=-1), RequestError),
    "user past the range": (lambda s: s.run("true", user=65_536), RequestError),
    "stdin that is a number": (lambda s: s.run("true", stdin=7), RequestError),
    "terminal of three numbers": (lambda s: s.start("true", pty=(1, 2, 3)), RequestError),
    "terminal of text": (lambda s: s.start("true", pty="24x80"), RequestError),
}

FILES: dict[str, tuple[Attempt, type[CloisterError]]] = {
    "a directory where a file is meant": (lambda s: s.files.read("/workspace"), FileError),
    "a file where a directory is meant": (lambda s: s.files.list("/workspace/kept"), FileError),
    "missing": (lambda s: s.files.read("/workspace/missing"), NotFound),
    "missing, with bytes that are no text": (
        lambda s: s.files.read("/workspace/" + os.fsdecode(b"\xff")),
        NotFound,
    ),
    "a lone surrogate": (lambda s: s.files.read("/workspace/\ud800"), RequestError),
    "a path of 100 MB": (lambda s: s.files.read("/" + HUGE), RequestError),
    "a number as path": (lambda s: s.files.read(7), RequestError),
    "None as path": (lambda s: s.files.read(None), RequestError),
    "a number as content": (lambda s: s.files.write("/workspace/new", 7), RequestError),
    "None as content": (lambda s: s.files.write("/workspace/new", None), RequestError),
    "text in pieces": (lambda s: s.files.write("/workspace/new", ["text"]), RequestError),
    "a negative mode": (lambda s: s.files.write("/workspace/new", "x", mode=-1), RequestError),
    "a mode past any": (lambda s: s.files.make("/workspace/new", mode=1 << 40), RequestError),
    "a negative limit": (lambda s: s.files.read("/workspace/kept", limit=-1), RequestError),
    "a directory into itself": (
        lambda s: s.files.move("/workspace", "/workspace/below"),
        FileError,
    ),
    "the root removed": (lambda s: s.files.remove("/", recursive=False), FileError),
}


@pytest.mark.parametrize("name", COMMANDS)
async def test_a_wrong_command_is_refused(still_works: Sandbox, name: str) -> None:
    attempt, error = COMMANDS[name]
    with pytest.raises(error):
        await attempt(still_works)


@pytest.mark.parametrize("name", FILES)
async def test_a_wrong_file_operation_is_refused(still_works: Sandbox, name: str) -> None:
    attempt, error = FILES[name]
    with pytest.raises(error):
        await attempt(still_works)


@pytest.mark.parametrize("offset", [-1, 1 << 63, 1 << 70])
async def test_a_wrong_offset_is_refused(still_works: Sandbox, offset: int) -> None:
    with pytest.raises((RequestError, FileError)):
        async for _ in still_works.files.stream("/workspace/kept", offset=offset):
            pytest.fail("there is nothing at that place")


SETTINGS: dict[str, Callable[[], object]] = {
    "negative memory": lambda: Limits(memory=-1),
    "memory of nothing": lambda: Limits(memory=0),
    "negative pids": lambda: Limits(pids=-1),
    "half a process": lambda: Limits(pids=1.5),  # type: ignore[arg-type]
    "negative cpus": lambda: Limits(cpus=-0.5),
    "negative disk": lambda: Limits(disk="-1GiB"),
    "unknown unit": lambda: Limits(disk="1 gigabyte"),
    "negative wall": lambda: Limits(wall=-1),
    "None as a limit": lambda: Limits(memory=None),  # type: ignore[arg-type]
    "unknown profile": lambda: Sandbox(profile="superuser"),
    "unknown trust": lambda: Sandbox(trust="full"),
    "limits that are none": lambda: Sandbox(limits={"memory": "1GiB"}),  # type: ignore[arg-type]
    "a relative target": lambda: Mount("/tmp", "relative"),
    "a target above": lambda: Mount("/tmp", "/mnt/../etc"),
    "a target in proc": lambda: Mount("/tmp", "/proc/1"),
    "an unknown mode": lambda: Mount("/tmp", "/mnt/x", "rw"),
    "one target twice": lambda: Sandbox(mounts=[Mount("/a", "/mnt/x"), Mount("/b", "/mnt/x")]),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_wrong_setting_is_refused_before_anything_starts(name: str) -> None:
    with pytest.raises(RequestError):
        SETTINGS[name]()


def test_an_unknown_setting_names_the_one_that_was_meant() -> None:
    with pytest.raises(PolicyError, match="default"):
        Sandbox(profile="defalt")


@pytest.mark.parametrize("trust", ["untrusted", "hostile"])
async def test_a_wall_that_is_not_there_is_never_replaced_by_a_weaker_one(make, trust: str) -> None:
    with pytest.raises(Unsupported, match='its wall is for trust = "internal" only'):
        await make(trust=trust, runtime="namespace").open()
    async with make(trust="internal") as sandbox:
        assert sandbox.is_running
