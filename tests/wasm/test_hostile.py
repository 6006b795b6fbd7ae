"""Modules that want more than they were given: time, memory, files, output, the host itself."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cloister import Limits, Mount, RequestError, Sandbox
from cloister.model import Reason
from cloister.sandbox import modules

Make = Callable[..., Sandbox]
Module = Callable[[str], bytes]


@pytest.mark.parametrize("name", ["loop", "sleep"])
async def test_the_time_limit_ends_what_computes_and_what_waits(
    make: Make, module: Module, name: str
) -> None:
    async with make() as sandbox:
        before = await sandbox.run_module(module("echo"))
        result = await sandbox.run_module(module(name), timeout=1)
        assert result.reason is Reason.TIMEOUT and result.signal == 9
        after = await sandbox.run_module(module("echo"))
        assert before.exit_code == after.exit_code == 3


async def test_a_cancelled_call_leaves_nothing_running(make: Make, module: Module) -> None:
    printed = asyncio.Event()

    async def say(stream: int, data: bytes) -> None:
        printed.set()

    async with make() as sandbox:
        call = asyncio.create_task(sandbox.run_module(module("loop"), say=say))
        await asyncio.wait_for(printed.wait(), 60)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await sandbox.run_module(module("echo"))).exit_code == 3
        assert not sandbox._span.busy


async def test_memory_past_the_limit_is_not_given(make: Make, module: Module) -> None:
    async with make(limits=Limits(memory="32MiB")) as sandbox:
        result = await sandbox.run_module(module("grow"))
        assert result.exit_code == 7 and result.reason is Reason.EXIT
        assert 16 * 2**20 < result.usage.peak_memory_bytes <= 32 * 2**20
        large = module('(module (memory (export "memory") 1024) (func (export "_start")))')
        with pytest.raises(RequestError, match="memory"):
            await sandbox.run_module(large)
        assert (await sandbox.run_module(module("echo"))).exit_code == 3


async def test_tables_past_the_limit_are_not_given(make: Make, module: Module) -> None:
    text = '(module (table 20000000 funcref) (func (export "_start")))'
    async with make() as sandbox:
        with pytest.raises(RequestError, match="table"):
            await sandbox.run_module(module(text))
        assert (await sandbox.run_module(module(text.replace("20000000", "20")))).ok


@pytest.mark.parametrize(("name", "words"), [("trap", "unreachable"), ("recurse", "stack")])
async def test_a_trap_is_the_end_of_the_call_alone(
    make: Make, module: Module, name: str, words: str
) -> None:
    async with make() as sandbox:
        result = await sandbox.run_module(module(name))
        assert result.exit_code == 134 and result.reason is Reason.SIGNAL
        assert words in result.stderr
        assert (await sandbox.run_module(module("echo"))).exit_code == 3


async def test_output_past_the_limit_is_counted_and_not_kept(make: Make, module: Module) -> None:
    async with make(limits=Limits(output="1MiB")) as sandbox:
        result = await sandbox.run_module(module("flood"))
        assert result.ok and result.stdout_truncated
        assert len(result.stdout_bytes) == 2**20 and result.stdout_total == 64 * 2**20


async def test_no_path_leads_out_of_what_was_granted(
    make: Make, module: Module, tmp_path: Path
) -> None:
    file = module("file")
    async with make() as sandbox:
        assert (await sandbox.run_module(file, ["l3inner|given"])).ok
        await sandbox.files.write("/workspace/given", b"ours")
        # The allowed twin: a link that stays within is followed.
        assert (await sandbox.run_module(file, ["r3inner"])).stdout == "ours"
        await sandbox.files.write("/tmp/outside", b"not for it")
        assert (await sandbox.files.read("/tmp/outside")) == b"not for it"
        for path in ("/tmp/outside", "../tmp/outside", "a/../../tmp/outside"):
            result = await sandbox.run_module(file, [f"r3{path}"])
            assert result.exit_code and "not for it" not in result.stdout
        targets = ("/tmp/outside", "../tmp/outside", "/proc/self/environ", "/proc/self/mem")
        for number, target in enumerate(targets):
            made = await sandbox.run_module(file, [f"l3{number}|{target}"])
            if not made.ok:
                # An absolute target is refused when the link is made.
                assert target.startswith("/")
                continue
            result = await sandbox.run_module(file, [f"r3{number}"])
            assert result.exit_code and "not for it" not in result.stdout
            assert not (await sandbox.run_module(file, [f"w3{number}"])).ok
        assert (await sandbox.files.read("/tmp/outside")) == b"not for it"


async def test_a_link_that_programs_left_does_not_become_the_working_directory(
    make: Make, module: Module, tmp_path: Path
) -> None:
    (tmp_path / "out").symlink_to("/etc")
    (tmp_path / "in").mkdir()
    async with make() as sandbox:
        await sandbox.files.copy_in(tmp_path, "/workspace/given")
        run = sandbox.run_module(module("file"), ["r4passwd"], cwd="/workspace/given/out")
        with pytest.raises(RequestError, match="out: a link"):
            await run
        with pytest.raises(RequestError, match="in no directory it is given"):
            await sandbox.run_module(module("file"), ["r4passwd"], cwd="/etc")
        result = await sandbox.run_module(module("file"), ["w4made"], cwd="/workspace/given/in")
        assert result.ok and await sandbox.files.exists("/workspace/given/in/made")


async def test_a_mount_is_not_taken_for_what_a_link_above_it_leads_to(
    make: Make, module: Module, tmp_path: Path
) -> None:
    mounts = [Mount(str(tmp_path), "/workspace/above/usr", "read")]
    async with make(mounts=mounts) as sandbox:
        assert (await sandbox.run_module(module("echo"))).exit_code == 3
        assert (await sandbox.run_module(module("file"), ["l3link|.."])).ok
        await sandbox.files.move("/workspace/above", "/workspace/away")
        # From here on /workspace/above/usr is the sandbox's own /usr.
        await sandbox.files.move("/workspace/link", "/workspace/above")
        assert await sandbox.files.exists("/workspace/above/usr/bin")
        with pytest.raises(RequestError, match="above: a link"):
            await sandbox.run_module(module("echo"))


async def test_a_module_that_is_too_much_to_compile_costs_nobody_else(
    make: Make, module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Thousands of functions, of which each is a hundred loops within one another.
    function = "(func" + "(loop" * 100 + "(br_if 0 (i32.const 1))" + ")" * 101
    bomb = module("(module " + function * 5000 + '(func (export "_start")))')
    monkeypatch.setattr(modules, "_COMPILE_S", 0.05)
    async with make() as sandbox:
        with pytest.raises(RequestError, match="not compiled within"):
            await sandbox.run_module(bomb)
        monkeypatch.setattr(modules, "_COMPILE_S", 60.0)
        assert (await sandbox.run_module(module("echo"))).exit_code == 3
        large = b"\0asm" + bytes(modules.MAX_MODULE_BYTES)
        with pytest.raises(RequestError, match="is larger than"):
            await sandbox.run_module(large)


async def test_a_compiled_module_that_somebody_changed_is_not_loaded(
    make: Make, module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path))
    for name in ("echo", "cat"):
        async with make() as sandbox:
            await sandbox.run_module(module(name))
    one, other = (tmp_path / "modules").iterdir()
    # One byte of native code is another; the other is whole, but under a name that is not its own.
    data = bytearray(one.read_bytes())
    data[len(data) // 2] ^= 1
    one.write_bytes(data)
    async with make() as sandbox:
        assert (await sandbox.run_module(module("echo"))).exit_code == 3
        assert (await sandbox.run_module(module("cat"), stdin="again")).stdout == "again"
    # It was compiled again.
    assert one.read_bytes() != bytes(data)
    whole = other.read_bytes()
    one.write_bytes(whole)
    async with make() as sandbox:
        assert (await sandbox.run_module(module("echo"))).exit_code == 3
        assert (await sandbox.run_module(module("cat"), stdin="again")).stdout == "again"
    assert one.read_bytes() != whole


async def test_no_sandbox_sees_what_was_compiled(make: Make, module: Module) -> None:
    async with make() as sandbox:
        await sandbox.run_module(module("echo"))
        state = os.environ["CLOISTER_STATE"]
        assert Path(state, "modules").exists()
        assert not await sandbox.files.exists(state)
        assert all(state not in point for point, _ in sandbox.posture.mounts)
        writable = [point for point, mode in sandbox.posture.mounts if mode == "rw"]
        assert not [point for point in writable if "cloister-wasm" in point]


async def test_a_worker_that_is_killed_is_a_result_and_the_next_call_has_another(
    make: Make, module: Module
) -> None:
    printed = asyncio.Event()

    async def say(stream: int, data: bytes) -> None:
        printed.set()

    async with make() as sandbox:
        call = asyncio.create_task(sandbox.run_module(module("loop"), say=say))
        await asyncio.wait_for(printed.wait(), 60)
        for pid in sandbox.host_pids:
            if b"worker.py" in _command(pid):
                os.kill(pid, 9)
        result = await asyncio.wait_for(call, 60)
        assert result.reason is Reason.SIGNAL and result.signal == 9
        assert (await sandbox.run_module(module("echo"))).exit_code == 3


OWNER = """
import asyncio, sys
from pathlib import Path
from cloister import Sandbox

async def main():
    async with Sandbox(runtime="wasm") as sandbox:
        async def say(stream, data):
            print(*sandbox.host_pids, flush=True)
        await sandbox.run_module(Path(sys.argv[1]), say=say)

asyncio.run(main())
"""


async def test_killing_the_owner_leaves_no_worker(module: Module, tmp_path: Path) -> None:
    (tmp_path / "loop.wasm").write_bytes(module("loop"))
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OWNER, str(tmp_path / "loop.wasm")), stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    pids = [int(word) for word in (await asyncio.wait_for(owner.stdout.readline(), 60)).split()]
    assert any(b"worker.py" in _command(pid) for pid in pids)
    ends = [os.pidfd_open(pid) for pid in pids]
    owner.kill()
    await owner.wait()
    try:
        for end in ends:
            # Readable once the process has gone.
            assert await asyncio.to_thread(select.select, [end], [], [], 60) != ([], [], [])
    finally:
        for end in ends:
            os.close(end)


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
