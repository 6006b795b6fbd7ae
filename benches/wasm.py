"""A module in a sandbox that is there, instantiated and called, beside wasmtime without a wall."""

from __future__ import annotations

import dataclasses
import importlib.util

from benches.measure import NotMeasurable, take_turns, timed_ms
from benches.row import Bar, Row, row_against
from benches.setting import Setting
from cloister import Sandbox

# Prints one line, as the shortest of programs does.
HELLO = """
(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "hello\\n")
  (func (export "_start")
    (i32.store (i32.const 0) (i32.const 16))
    (i32.store (i32.const 4) (i32.const 6))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))
"""


async def measure(setting: Setting) -> list[Row]:
    if importlib.util.find_spec("wasmtime") is None:
        raise NotMeasurable("wasmtime is not installed")
    import wasmtime

    module = bytes(wasmtime.wat2wasm(HELLO))
    bare = Bare(module)
    async with Sandbox(runtime="wasm") as sandbox:

        async def ours() -> None:
            (await sandbox.run_module(module)).check()

        async def theirs() -> None:
            bare.call()

        contest = await take_turns(
            {"ours": timed_ms(ours), "wasmtime": timed_ms(theirs)}, setting.rounds(200)
        )
    row = row_against(
        *("wasm: instantiate and call", "ms", contest, "wasmtime"),
        *(Bar.OURS_AT_MOST, 1.0, setting.absent),
    )
    return [dataclasses.replace(row, facts={"peer": "in this process, with no wall around it"})]


class Bare:
    """wasmtime in this process, with as much of WASI as the sandbox gives."""

    def __init__(self, module: bytes) -> None:
        import wasmtime

        self._engine = wasmtime.Engine()
        self._module = wasmtime.Module(self._engine, module)
        self._linker = wasmtime.Linker(self._engine)
        self._linker.define_wasi()

    def call(self) -> None:
        import wasmtime

        store = wasmtime.Store(self._engine)
        said: list[bytes] = []
        config = wasmtime.WasiConfig()
        config.argv = ["hello"]
        config.stdout_custom = lambda data: said.append(data)
        config.preopen_dir("/dev/shm", "/workspace")
        store.set_wasi(config)
        start = self._linker.instantiate(store, self._module).exports(store)["_start"]
        if isinstance(start, wasmtime.Func):
            start(store)
        store.close()
        if said != [b"hello\n"]:
            raise NotMeasurable("wasmtime did not print what it was told to")
