"""Runs modules of WebAssembly in a sandbox that is for them, in workers that wait inside."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloister.errors import (
    CloisterError,
    Exhausted,
    HostError,
    NotFound,
    ProtocolViolation,
    RequestError,
)
from cloister.model import Limits, MountMode, Reason, Result, Usage, User, VolumeMode, quote
from cloister.runtime.wasm.program import find_wasmtime
from cloister.sandbox.compile_turns import compile_turns
from cloister.sandbox.module_worker import Ended, ModuleWorker, WorkerEnded, limit_of
from cloister.sandbox.process import Command
from cloister.store.compiled import CompiledModules

if TYPE_CHECKING:
    from cloister.sandbox.sandbox import Sandbox

MAX_MODULE_BYTES = 64 * 2**20
_BEGINNING = b"\0asm"
MAX_STDIN_BYTES = 64 * 2**20
# At once in one sandbox; more calls wait for their turn.
_WORKERS = 8
# Those that wait for the next call; others end with theirs.
_WAITING = 2
# What compiling one module may take, in a sandbox of its own that runs and sees nothing else.
_COMPILE_S = 60.0
_COMPILING = Limits(memory="1GiB", disk="16MiB", lifetime="5m")
_ABORT = 6
_WORKSPACE = "/workspace"

# Told (1 or 2, bytes) of what is printed; the module waits for it.
Say = Callable[[int, bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """Everything about a call that is decided before; `module` is the host's, if it is given."""

    argv: tuple[str, ...]
    module: bytes | None
    cwd: str
    env: Mapping[str, str]
    user: User
    stdin: bytes
    timeout_s: float | None
    kept_bytes: int


class Modules:
    """The workers of one sandbox, and the modules they run."""

    def __init__(self, sandbox: Sandbox, lost: Callable[[CloisterError], None]) -> None:
        self._sandbox = sandbox
        self._lost = lost
        self._waiting: list[ModuleWorker] = []
        self._warming: asyncio.Task[ModuleWorker] | None = None
        self._places = asyncio.Semaphore(_WORKERS)
        self._compiling = asyncio.Lock()

    def warm(self) -> None:
        """Begin to start a worker, so that the next call need not wait for all of it."""
        if self._warming is None and not self._waiting:
            starting = ModuleWorker.start(self._sandbox)
            self._warming = asyncio.get_running_loop().create_task(starting)
            # Nobody may ever come for it.
            self._warming.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def close(self) -> None:
        """Begin nothing any more; what runs inside ends with the guest."""
        warming, self._warming = self._warming, None
        if warming is not None:
            warming.cancel()
            await asyncio.wait([warming])

    async def run(self, call: ModuleCall, say: Say | None = None) -> Result:
        """Run a module to its end; `say` is told what it prints, as it comes."""
        sandbox = self._sandbox
        begun = time.monotonic()
        digest, module = await self._read(call)
        record = None if sandbox.recording is None else self._record(call, digest)
        try:
            async with self._places:
                result = await self._run(call, digest, module, begun, say)
        except CloisterError as error:
            if record is not None:
                record(error)
            raise
        except BaseException:
            if record is not None:
                record(RequestError("the call was cancelled"))
            raise
        if record is not None:
            record(result)
        return result

    def _record(self, call: ModuleCall, digest: bytes) -> Callable[[Result | CloisterError], None]:
        argv = tuple(os.fsencode(word) for word in call.argv)
        command = Command(argv, b"", os.fsencode(call.cwd), call.user, None, stdin=bool(call.stdin))
        return self._sandbox.record_call(command, f"sha256:{digest.hex()}")

    async def _read(self, call: ModuleCall) -> tuple[bytes, bytes]:
        module = call.module
        if module is None:
            path = os.path.normpath(os.path.join(call.cwd, call.argv[0]))
            try:
                module = await self._sandbox.files.read(path, limit=MAX_MODULE_BYTES)
            except Exhausted:
                module = bytes(MAX_MODULE_BYTES + 1)
        if len(module) > MAX_MODULE_BYTES:
            raise RequestError(
                f"the module {quote(call.argv[0])} is larger than {MAX_MODULE_BYTES} bytes; "
                "strip it of names and debug information"
            )
        if not module.startswith(_BEGINNING):
            raise RequestError(
                f"the module cannot be run: {quote(call.argv[0])} is no WebAssembly; give a module "
                'for WASI preview 1, or name runtime = "namespace" for programs'
            )
        return hashlib.sha256(module).digest(), module

    async def _run(
        self, call: ModuleCall, digest: bytes, module: bytes, begun: float, say: Say | None
    ) -> Result:
        output = _Output(call.kept_bytes, say)
        worker = await self._take()
        try:
            if not worker.has(digest):
                await worker.load(digest, await self._artifact(digest, module))
            begun = time.monotonic()
            async with asyncio.timeout(call.timeout_s):
                ended = await worker.call(self._request(call, digest), call.stdin, output.add)
        except TimeoutError:
            await asyncio.shield(self._replace(worker))
            return output.killed(Reason.TIMEOUT, 9, begun, None)
        except WorkerEnded as error:
            self.warm()
            return output.killed(error.result.reason, error.result.signal, begun, error.result)
        except ProtocolViolation as error:
            self._lost(error)
            raise
        except RequestError:
            self._give_back(worker)
            raise
        except BaseException:
            await asyncio.shield(self._replace(worker))
            raise
        self._give_back(worker)
        return await output.ended(ended, begun)

    def _request(self, call: ModuleCall, digest: bytes) -> dict[str, object]:
        memory_bytes = self._sandbox.policy.limits.memory
        return {
            "digest": digest.hex(),
            "argv": call.argv,
            "env": [*call.env.items(), ("PWD", call.cwd)],
            "cwd": call.cwd,
            "granted": self._granted(),
            "memory_bytes": -1 if memory_bytes is None else memory_bytes,
        }

    def _granted(self) -> list[tuple[str, bool]]:
        policy = self._sandbox.policy
        granted = {_WORKSPACE: True}
        for mount in policy.mounts:
            if os.path.isdir(mount.source):
                granted[str(mount.target)] = mount.mode is not MountMode.READ
        for volume in policy.volumes:
            granted[str(volume.target)] = volume.mode is not VolumeMode.READ
        return list(granted.items())

    async def _take(self) -> ModuleWorker:
        while self._waiting:
            worker = self._waiting.pop()
            if worker.is_alive:
                return worker
        warming, self._warming = self._warming, None
        if warming is not None:
            with contextlib.suppress(CloisterError):
                worker = await warming
                if worker.is_alive:
                    return worker
        return await ModuleWorker.start(self._sandbox)

    def _give_back(self, worker: ModuleWorker) -> None:
        if len(self._waiting) < _WAITING:
            self._waiting.append(worker)
        else:
            worker.end()

    async def _replace(self, worker: ModuleWorker) -> None:
        await worker.stop()
        if self._sandbox.is_running:
            self.warm()

    async def _artifact(self, digest: bytes, module: bytes) -> bytes:
        compiled = CompiledModules(f"wasmtime {find_wasmtime().version} 1")
        async with self._compiling:
            found = await asyncio.to_thread(compiled.find, digest)
            if found is None:
                async with compile_turns().taken(self._sandbox.owner):
                    found = await _compile_apart(module)
                try:
                    await asyncio.to_thread(compiled.keep, digest, found)
                except OSError as error:
                    raise HostError(
                        f"the compiled module cannot be kept: {error.strerror}; make room, or set "
                        "CLOISTER_STATE to a directory of yours"
                    ) from error
        return found

    async def compile(self, module: bytes) -> bytes:
        """Return what a module is compiled to, by this sandbox, which should run none."""
        worker = await self._take()
        try:
            async with asyncio.timeout(_COMPILE_S):
                return await worker.compile(module)
        except TimeoutError:
            raise RequestError(
                f"the module was not compiled within {_COMPILE_S:g} s; make it smaller"
            ) from None
        except WorkerEnded as error:
            raise limit_of(error, "compiling the module") from None


async def _compile_apart(module: bytes) -> bytes:
    """Compile in a sandbox that ends with it: the compiler reads bytes that somebody chose."""
    from cloister.sandbox.sandbox import Sandbox

    place = Sandbox(trust="untrusted", runtime="wasm", limits=_COMPILING, ledger="off")
    async with place as compiling:
        return await compiling.modules.compile(module)


class _Output:
    """What a module prints: the beginning of each stream is kept, all of it is counted."""

    def __init__(self, kept_bytes: int, say: Say | None) -> None:
        self._kept_bytes = kept_bytes
        self._say = say
        self._kept = {1: bytearray(), 2: bytearray()}
        self._total = {1: 0, 2: 0}

    async def add(self, stream: int, data: bytes) -> None:
        """Take some more."""
        self._total[stream] += len(data)
        kept = self._kept[stream]
        kept += data[: max(0, self._kept_bytes - len(kept))]
        if self._say is not None:
            await self._say(stream, data)

    async def ended(self, ended: Ended, begun: float) -> Result:
        """Return the result of a call that ended by itself, or with a trap."""
        usage = Usage(ended.user_s, ended.system_s, ended.memory_bytes, 0, 0, 1)
        if ended.trap is None:
            return self._result(ended.code, None, Reason.EXIT, begun, usage)
        await self.add(2, f"{ended.trap.strip()}\n".encode("utf-8", "replace"))
        return self._result(128 + _ABORT, _ABORT, Reason.SIGNAL, begun, usage)

    def killed(
        self, reason: Reason, signal: int | None, begun: float, worker: Result | None
    ) -> Result:
        """Return the result of a call whose worker ended, of itself or by us."""
        usage = Usage(0.0, 0.0, 0, 0, 0, 1) if worker is None else worker.usage
        code = 1 if signal is None else 128 + signal
        return self._result(code, signal, reason, begun, usage)

    def _result(
        self, code: int, signal: int | None, reason: Reason, begun: float, usage: Usage
    ) -> Result:
        out, err = self._kept[1], self._kept[2]
        return Result(
            exit_code=code,
            signal=signal,
            reason=reason,
            stdout_bytes=bytes(out),
            stderr_bytes=bytes(err),
            stdout_truncated=self._total[1] > len(out),
            stderr_truncated=self._total[2] > len(err),
            stdout_total=self._total[1],
            stderr_total=self._total[2],
            wall_s=time.monotonic() - begun,
            usage=usage,
        )


def read_module(path: os.PathLike[str]) -> bytes:
    """Return a module of the host's; of one that is too large, enough to see that."""
    try:
        with open(path, "rb") as file:
            return file.read(MAX_MODULE_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(
            f"the module {os.fspath(path)} does not exist", what=os.fspath(path)
        ) from None
    except OSError as error:
        raise RequestError(
            f"the module {os.fspath(path)} cannot be read: {error.strerror}"
        ) from error
