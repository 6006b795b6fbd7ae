"""The program that runs modules inside the wall, one after another; executed as a file of its own.

A plain Python does so, with its standard library and wasmtime. Frames of `u32 length | u8 kind |
payload` come on its standard input and go out on its standard output.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
from errno import ENOTDIR
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import wasmtime

HEADER = struct.Struct("<IB")
LENGTH = struct.Struct("<I")
DIGEST_BYTES = 32
# What the host asks for.
COMPILE, LOAD, DROP, CALL = range(1, 5)
# What it is told.
READY, ARTIFACT, REFUSED, STDOUT, STDERR, ENDED = range(1, 7)
MAX_OUTPUT_BYTES = 65_536
MAX_TEXT_BYTES = 4096
# Entries of a table are memory that no limit of a module's memory counts.
_MAX_TABLE_ENTRIES = 1_000_000


class Worker:
    """Holds what calls share: the engine, what a module may import, and the modules."""

    def __init__(self, requests: BinaryIO, replies: int) -> None:
        self._requests = requests
        self._replies = replies
        self._engine = make_engine()
        self._linker = _wasmtime().Linker(self._engine)
        self._linker.define_wasi()
        self._modules: dict[bytes, wasmtime.Module] = {}

    def serve(self) -> None:
        """Do what is asked until nobody asks any more."""
        self._tell(READY, b"")
        while (asked := self._receive()) is not None:
            kind, payload = asked
            if kind == CALL:
                self._call(payload)
            elif kind == LOAD:
                self._load(payload)
            elif kind == DROP:
                self._modules.pop(bytes(payload), None)
            elif kind == COMPILE:
                self._compile(payload)
            else:
                raise ValueError(f"request of unknown kind {kind}")

    def _receive(self) -> tuple[int, bytearray] | None:
        header = self._requests.read(HEADER.size)
        if len(header) < HEADER.size:
            return None
        length, kind = HEADER.unpack(header)
        payload = bytearray(length)
        view = memoryview(payload)
        while view:
            count = self._requests.readinto(view)  # type: ignore[attr-defined]
            if not count:
                return None
            view = view[count:]
        return kind, payload

    def _tell(self, kind: int, payload: bytes) -> None:
        left = memoryview(HEADER.pack(len(payload), kind) + payload)
        while left:
            left = left[os.write(self._replies, left) :]

    def _refuse(self, error: Exception) -> None:
        self._tell(REFUSED, str(error).encode("utf-8", "replace")[:MAX_TEXT_BYTES])

    def _compile(self, module: bytearray) -> None:
        try:
            compiled = _wasmtime().Module(self._engine, module)
        except _wasmtime().WasmtimeError as error:
            self._refuse(error)
        else:
            self._tell(ARTIFACT, bytes(compiled.serialize()))

    def _load(self, payload: bytearray) -> None:
        digest, artifact = bytes(payload[:DIGEST_BYTES]), payload[DIGEST_BYTES:]
        self._modules[digest] = _wasmtime().Module.deserialize(self._engine, artifact)

    def _call(self, payload: bytearray) -> None:
        (length,) = LENGTH.unpack_from(payload)
        rest = LENGTH.size + length
        request = json.loads(bytes(payload[LENGTH.size : rest]))
        fds: list[int] = []
        store = _wasmtime().Store(self._engine)
        try:
            store.set_limits(
                memory_size=request["memory_bytes"],
                table_elements=_MAX_TABLE_ENTRIES,
                instances=1,
                tables=16,
                memories=1,
            )
            module = self._modules[bytes.fromhex(request["digest"])]
            before = resource.getrusage(resource.RUSAGE_SELF)
            try:
                store.set_wasi(self._surroundings(request, payload[rest:], fds))
                instance = self._linker.instantiate(store, module)
                start = instance.exports(store)["_start"]
            except KeyError:
                self._refuse(ValueError("it exports no function _start, as a program does"))
                return
            except (_wasmtime().WasmtimeError, ValueError, OSError) as error:
                self._refuse(error)
                return
            except _wasmtime().Trap as trap:
                # Of a start function, or of data that does not fit: its own doing.
                self._end(store, None, before, None, str(trap))
                return
            if not isinstance(start, _wasmtime().Func):
                self._refuse(ValueError("what it exports as _start is no function"))
                return
            code, trapped = 0, None
            try:
                start(store)
            except _wasmtime().ExitTrap as exited:
                code = exited.code
            except (_wasmtime().Trap, _wasmtime().WasmtimeError) as trap:
                trapped = str(trap)
            self._end(store, instance, before, code, trapped)
        finally:
            store.close()
            for fd in fds:
                os.close(fd)

    def _surroundings(
        self, request: dict[str, Any], stdin: bytearray, fds: list[int]
    ) -> wasmtime.WasiConfig:
        config: wasmtime.WasiConfig = _wasmtime().WasiConfig()
        config.argv = request["argv"]
        config.env = request["env"]
        if stdin:
            fd = os.memfd_create("stdin")
            fds.append(fd)
            view = memoryview(stdin)
            while view:
                view = view[os.write(fd, view) :]
            config.stdin_file = f"/proc/self/fd/{fd}"
        config.stdout_custom = lambda data: self._say(STDOUT, data)
        config.stderr_custom = lambda data: self._say(STDERR, data)
        granted = [(path, bool(writable)) for path, writable in request["granted"]]
        for path, writable in granted:
            fds.append(open_directory(path))
            config.preopen_dir(f"/proc/self/fd/{fds[-1]}", path, writable)
        fds.append(open_directory(request["cwd"]))
        writable = is_writable(request["cwd"], granted)
        config.preopen_dir(f"/proc/self/fd/{fds[-1]}", ".", writable)
        return config

    def _say(self, kind: int, data: bytes) -> int:
        for begin in range(0, len(data), MAX_OUTPUT_BYTES):
            self._tell(kind, data[begin : begin + MAX_OUTPUT_BYTES])
        return len(data)

    def _end(
        self,
        store: wasmtime.Store,
        instance: wasmtime.Instance | None,
        before: resource.struct_rusage,
        code: int | None,
        trapped: str | None,
    ) -> None:
        after = resource.getrusage(resource.RUSAGE_SELF)
        memory = None
        if instance is not None:
            memory = instance.exports(store).get("memory")
        report = {
            "code": code,
            "trap": None if trapped is None else trapped[: MAX_TEXT_BYTES // 4],
            "user_s": after.ru_utime - before.ru_utime,
            "system_s": after.ru_stime - before.ru_stime,
            "memory_bytes": (
                memory.data_len(store) if isinstance(memory, _wasmtime().Memory) else 0
            ),
        }
        self._tell(ENDED, json.dumps(report).encode())


def make_engine() -> wasmtime.Engine:
    """Return the engine of every worker; what one compiles another can load only if it is the same.

    What it does without is what would need more than one memory or thread, and what few compilers
    make use of: each is more code that a module could find a hole in.
    """
    config = _wasmtime().Config()
    config.wasm_threads = False
    config.wasm_memory64 = False
    config.wasm_multi_memory = False
    config.wasm_gc = False
    config.wasm_component_model = False
    config.wasm_stack_switching = False
    engine: wasmtime.Engine = _wasmtime().Engine(config)
    return engine


def open_directory(path: str) -> int:
    """Open a directory through no link: above a mount in the workspace, a module may put one."""
    fd = os.open("/", os.O_PATH | os.O_DIRECTORY)
    for part in filter(None, path.split("/")):
        above = fd
        try:
            fd = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
        except OSError as error:
            why = "a link, or no directory" if error.errno == ENOTDIR else error.strerror
            raise ValueError(f"{path} cannot be given to it: {part}: {why}") from error
        finally:
            os.close(above)
    return fd


def is_writable(path: str, granted: list[tuple[str, bool]]) -> bool:
    """Whether a directory may be written to, which must be within a granted one."""
    covers = [each for each in granted if path == each[0] or path.startswith(each[0] + "/")]
    if not covers:
        names = ", ".join(name for name, _ in granted)
        raise ValueError(f"cwd {path} is in no directory it is given; use one of {names}")
    return max(covers, key=lambda each: len(each[0]))[1]


def _wasmtime() -> Any:
    import wasmtime

    return wasmtime


def main() -> None:
    """Serve on the streams it was started with; prints of others must not get between frames."""
    sys.path.append(sys.argv[1])
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    with open(requests, "rb") as reading:
        Worker(reading, replies).serve()


if __name__ == "__main__":
    main()
