"""Modules run as programs do: arguments, variables, streams, files, exit codes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from cloister import Limits, Mount, NotFound, Policy, RequestError, Sandbox, Unsupported
from cloister.ledger import ProcessEnded, ProcessStarted
from cloister.ledger.reading import read_entries
from cloister.ledger.text import listed
from cloister.model import Reason
from cloister.node import Node
from cloister.store import state_directory

Make = Callable[..., Sandbox]
Module = Callable[[str], bytes]


async def test_a_module_inside_and_one_of_the_host_run_alike(make: Make, module: Module) -> None:
    async with make(trust="untrusted") as sandbox:
        await sandbox.files.write("/workspace/echo.wasm", module("echo"))
        inside = await sandbox.run(["echo.wasm", "one", "two words"], env={"GREETING": "hello"})
        handed = await sandbox.run_module(module("echo"), ["one", "two words"], name="echo.wasm")
        for result in (inside, handed):
            assert result.stdout_bytes == b"echo.wasm\0one\0two words\0"
            assert result.exit_code == 3 and result.reason is Reason.EXIT
        assert b"GREETING=hello\0" in inside.stderr_bytes
        assert b"GREETING" not in handed.stderr_bytes


async def test_the_posture_names_wasmtime_and_the_wall_around_it(make: Make) -> None:
    async with make(trust="untrusted") as sandbox:
        facts = sandbox.posture.facts
        assert facts["wall"] == "wasm" and facts["wall_version"].startswith("wasmtime ")
        assert facts["wall_platform"] == "namespace" and facts["seccomp"] == "2"


async def test_it_is_taken_by_name_only_and_never_for_more_than_it_is_made_for() -> None:
    node = Node.current()
    assert node.runtime_for(Policy()).name == "namespace"
    assert node.runtime_for(Policy(runtime="wasm", trust="untrusted")).name == "wasm"
    for policy in (
        Policy(runtime="wasm", trust="hostile"),
        Policy(runtime="wasm", require="own-kernel"),
    ):
        with pytest.raises(Unsupported, match="wasm"):
            node.runtime_for(policy)


async def test_standard_input_is_read_to_its_end(make: Make, module: Module) -> None:
    data = bytes(range(256)) * 1000
    async with make() as sandbox:
        assert (await sandbox.run_module(module("cat"), stdin=data)).stdout_bytes == data
        assert (await sandbox.run_module(module("cat"), stdin="text")).stdout == "text"
        assert (await sandbox.run_module(module("cat"))).stdout == ""


async def test_files_are_those_of_the_sandbox(make: Make, module: Module) -> None:
    async with make() as sandbox:
        await sandbox.files.write("/workspace/given", b"from the host")
        assert (await sandbox.run_module(module("file"), ["r3given"])).stdout == "from the host"
        assert (await sandbox.run_module(module("file"), ["w3made"])).ok
        assert await sandbox.files.read("/workspace/made") == b"written by a module\n"
        await sandbox.files.make("/workspace/below")
        result = await sandbox.run_module(module("file"), ["w4here"], cwd="/workspace/below")
        assert result.ok and await sandbox.files.exists("/workspace/below/here")


async def test_a_mount_is_written_to_only_where_it_may_be(
    make: Make, module: Module, tmp_path: Path
) -> None:
    mounts = []
    for name, mode in (("read", "read"), ("write", "write")):
        (tmp_path / name).mkdir(mode=0o777)
        (tmp_path / name / "given").write_text(name)
        mounts.append(Mount(str(tmp_path / name), f"/{name}", mode))
    async with make(mounts=mounts) as sandbox:
        # In the order in which they were given, behind the workspace.
        assert (await sandbox.run_module(module("file"), ["r4given"])).stdout == "read"
        assert (await sandbox.run_module(module("file"), ["r5given"])).stdout == "write"
        assert not (await sandbox.run_module(module("file"), ["w4made"])).ok
        assert (await sandbox.run_module(module("file"), ["w5made"])).ok
    assert not (tmp_path / "read" / "made").exists()
    assert (tmp_path / "write" / "made").read_text() == "written by a module\n"


async def test_calls_at_once_each_have_their_own_output(make: Make, module: Module) -> None:
    async with make() as sandbox:
        calls = [sandbox.run_module(module("echo"), [str(number)]) for number in range(6)]
        results = await asyncio.gather(*calls)
    assert [result.stdout_bytes for result in results] == [
        b"module.wasm\0%d\0" % number for number in range(6)
    ]


async def test_what_only_programs_can_do_is_refused_and_says_where_it_can_be_done(
    make: Make, module: Module
) -> None:
    async with make() as sandbox:
        await sandbox.files.write("/workspace/echo.wasm", module("echo"))
        for attempt in (
            sandbox.run("echo hello"),
            sandbox.start(["echo.wasm"]),
            sandbox.start(["echo.wasm"], pty=True),
            sandbox.dial(80),
        ):
            with pytest.raises(Unsupported, match='name runtime = "namespace" or "gvisor"'):
                await attempt
        assert (await sandbox.run(["echo.wasm"])).exit_code == 3
    async with Sandbox() as other:
        with pytest.raises(Unsupported, match='name runtime = "wasm"'):
            await other.run_module(module("echo"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"egress": ["example.org"]}, "no way out"),
        ({"profile": "root"}, "no profile"),
        ({"root": "/usr"}, "no root filesystem"),
    ],
)
async def test_what_this_wall_does_not_have_is_refused(
    make: Make, settings: dict[str, object], words: str
) -> None:
    if "root" in settings:
        from cloister import DirectoryRoot

        settings = {"root": DirectoryRoot(Path("/usr"))}
    with pytest.raises(Unsupported, match=words):
        await make(**settings).open()


async def test_what_is_no_module_is_refused_with_its_reason(make: Make, module: Module) -> None:
    async with make() as sandbox:
        await sandbox.files.write("/workspace/script", b"#!/bin/sh\necho hello\n")
        await sandbox.files.write("/workspace/echo.wasm", module("echo"))
        for attempt in (
            sandbox.run(["script"]),
            sandbox.run_module(b"\0asm and more"),
            sandbox.run_module(module("echo")[:-5]),
            sandbox.run_module(module('(module (func (export "other")))')),
            sandbox.run_module(module('(module (import "env" "system" (func)))')),
        ):
            with pytest.raises(RequestError, match="the module cannot be run"):
                await attempt
        with pytest.raises(NotFound, match=r"missing\.wasm"):
            await sandbox.run(["missing.wasm"])
        with pytest.raises(NotFound, match=r"missing\.wasm"):
            await sandbox.run_module(Path("missing.wasm"))
        assert (await sandbox.run(["echo.wasm"])).exit_code == 3


async def test_each_call_is_in_the_ledger_as_what_a_caller_asked_for(
    make: Make, module: Module
) -> None:
    async with make(ledger="on") as sandbox:
        await sandbox.run_module(module("echo"), ["one"], name="echo.wasm")
        id = sandbox.id
    entries = list(read_entries(state_directory(), id))
    begun = [entry for entry in entries if isinstance(entry.payload, ProcessStarted)]
    (asked,) = [entry for entry in begun if entry.payload.by == "api"]
    assert listed(asked.payload.argv) == ["echo.wasm", "one"]
    assert asked.payload.module == f"sha256:{hashlib.sha256(module('echo')).hexdigest()}"
    ended = [entry.payload for entry in entries if isinstance(entry.payload, ProcessEnded)]
    assert [each.exit_code for each in ended if each.source == "guest"] == [3]


async def test_a_module_that_was_compiled_once_is_not_compiled_again(
    make: Make, module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloister.sandbox import modules

    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path))
    async with make() as sandbox:
        assert (await sandbox.run_module(module("echo"))).exit_code == 3
    (kept,) = (tmp_path / "modules").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    # A limit that no compiler keeps: what runs was kept.
    monkeypatch.setattr(modules, "_COMPILE_S", 0.0)
    async with make() as sandbox:
        assert (await sandbox.run_module(module("echo"))).exit_code == 3
        with pytest.raises(RequestError, match="not compiled within"):
            await sandbox.run_module(module("cat"))


async def test_a_disk_is_snapshotted_and_forked_between_calls(make: Make, module: Module) -> None:
    async with make(storage="disk", limits=Limits(disk="unlimited")) as sandbox:
        assert (await sandbox.run_module(module("file"), ["w3made"])).ok
        snapshot = await sandbox.snapshot()
        await sandbox.files.remove("/workspace/made")
        assert not (await sandbox.run_module(module("file"), ["r3made"])).ok
        changes = [change.path for change in await sandbox.diff()]
        assert not [path for path in changes if "cloister-wasm" in str(path)]
        async with Sandbox.fork(snapshot) as (child,):
            read = await child.run_module(module("file"), ["r3made"])
            assert read.stdout == "written by a module\n"
