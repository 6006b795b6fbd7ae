"""A process inside that waits for modules to run, as the host talks to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloister.errors import (
    CloisterError,
    Exhausted,
    GuestError,
    GuestGone,
    HostError,
    ProtocolViolation,
    RequestError,
)
from cloister.model import Result
from cloister.runtime.wasm.program import find_wasmtime
from cloister.runtime.wasm.worker import (
    ARTIFACT,
    CALL,
    COMPILE,
    DROP,
    ENDED,
    HEADER,
    LENGTH,
    LOAD,
    MAX_OUTPUT_BYTES,
    MAX_TEXT_BYTES,
    READY,
    REFUSED,
    STDERR,
    STDOUT,
)
from cloister.sandbox.capture import Capture
from cloister.sandbox.process import Command, Process
from cloister.store.compiled import MAX_ARTIFACT_BYTES
from cloister.wire.messages import encode_strings

if TYPE_CHECKING:
    from cloister.sandbox.sandbox import Sandbox

# A Python and a large library are loaded, which on a busy machine takes its time.
_READY_S = 60.0
_KEPT_LOG_BYTES = 4096
_LINE = 400
# Above what any call takes of anything; below what is no number to anybody else.
_SANE = 2**48
# Modules that a worker holds; each takes of the sandbox's memory.
_LOADED = 8
_LARGEST = {
    READY: 0,
    REFUSED: MAX_TEXT_BYTES,
    STDOUT: MAX_OUTPUT_BYTES,
    STDERR: MAX_OUTPUT_BYTES,
    ENDED: 2 * MAX_TEXT_BYTES,
    ARTIFACT: MAX_ARTIFACT_BYTES,
}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a call ended: with an exit code, or with a trap, of which this is the text."""

    code: int
    trap: str | None
    user_s: float
    system_s: float
    memory_bytes: int


class WorkerEnded(GuestError):
    """The worker ended in the middle of something, as this result says; the caller says why."""

    def __init__(self, result: Result, log: bytes) -> None:
        super().__init__(result.describe())
        self.result = result
        self.log = log


class ModuleWorker:
    """One worker; it does one thing at a time, and is killed if that is to end before it does."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._buffer = bytearray()
        self._log: Capture | None = None
        self._loaded: dict[bytes, None] = {}

    @classmethod
    async def start(cls, sandbox: Sandbox) -> ModuleWorker:
        """Start one in a sandbox of modules, and wait until it can work."""
        wasmtime = find_wasmtime()
        env = encode_strings(wasmtime.env)
        command = Command(wasmtime.argv, env, b"/", sandbox.policy.run_as, None, stdin=True)
        process = sandbox.make_process(command)
        worker = cls(process)
        try:
            process.begin(tell=True, timeout_s=None)
            if process.stderr is not None:
                worker._log = Capture(process.stderr, _KEPT_LOG_BYTES)
                worker._log.begin()
            async with asyncio.timeout(_READY_S):
                await process.wait_started()
                await worker._expect(READY)
        except TimeoutError:
            await worker.stop()
            raise HostError(f"wasmtime was not ready after {_READY_S:g} s; try again") from None
        except WorkerEnded as error:
            raise HostError(
                f"wasmtime could not be started inside ({error}: {_line(error.log[-_LINE:])}); "
                "see that its files and those of Python can be read by everybody"
            ) from None
        except BaseException:
            await asyncio.shield(worker.stop())
            raise
        return worker

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return not self._process.is_over

    async def compile(self, module: bytes) -> bytes:
        """Return what a module is compiled to; refused where it is none."""
        await self._send(COMPILE, module)
        return bytes(await self._expect(ARTIFACT))

    def has(self, digest: bytes) -> bool:
        """Whether it holds a module."""
        return digest in self._loaded

    async def load(self, digest: bytes, artifact: bytes) -> None:
        """Have it hold a module, and let go of the one that was loaded first if it has many."""
        while len(self._loaded) >= _LOADED:
            oldest = next(iter(self._loaded))
            del self._loaded[oldest]
            await self._send(DROP, oldest)
        await self._send(LOAD, digest + artifact)
        self._loaded[digest] = None

    async def call(
        self, request: dict[str, Any], stdin: bytes, say: Callable[[int, bytes], Awaitable[None]]
    ) -> Ended:
        """Run a module to its end; `say` is told what it prints, as (1 or 2, bytes)."""
        text = json.dumps(request).encode()
        await self._send(CALL, LENGTH.pack(len(text)) + text + stdin)
        while True:
            kind, payload = await self._receive((STDOUT, STDERR, ENDED, REFUSED))
            if kind == STDOUT:
                await say(1, payload)
            elif kind == STDERR:
                await say(2, payload)
            elif kind == REFUSED:
                raise _refusal(payload)
            else:
                return _parse_ended(payload)

    async def _send(self, kind: int, payload: bytes) -> None:
        if self._process.stdin is None:
            raise HostError("a worker was started without its standard input")
        try:
            await self._process.stdin.write(HEADER.pack(len(payload), kind) + payload)
        except GuestGone:
            await self._raise_end()

    async def _expect(self, wanted: int) -> bytes:
        kind, payload = await self._receive((wanted, REFUSED))
        if kind == REFUSED:
            raise _refusal(payload, "; give one of WebAssembly for WASI preview 1")
        return payload

    async def _receive(self, wanted: tuple[int, ...]) -> tuple[int, bytes]:
        """Return the next frame. Whatever has got hold of the worker chose every byte of it."""
        await self._fill(HEADER.size)
        length, kind = HEADER.unpack_from(self._buffer)
        if kind not in wanted or length > _LARGEST[kind]:
            raise ProtocolViolation(f"a worker said {length} bytes of kind {kind}; ended")
        await self._fill(HEADER.size + length)
        payload = bytes(self._buffer[HEADER.size : HEADER.size + length])
        del self._buffer[: HEADER.size + length]
        return kind, payload

    async def _fill(self, count: int) -> None:
        while len(self._buffer) < count:
            chunk = await self._process.stdout.read()
            if not chunk:
                await self._raise_end()
            self._buffer += chunk

    async def _raise_end(self) -> None:
        result = await self._process.wait()
        if self._log is not None:
            with contextlib.suppress(CloisterError):
                await self._log.wait()
        raise WorkerEnded(result, b"" if self._log is None else self._log.kept)

    def end(self) -> None:
        """Ask nothing of it any more; it ends by itself."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def stop(self) -> None:
        """End it, whatever it does."""
        if self._log is not None:
            self._log.abandon()
        await self._process.stop()


def _refusal(payload: bytes, advice: str = "") -> RequestError:
    return RequestError(f"the module cannot be run: {_line(payload)}{advice}")


def _line(payload: bytes) -> str:
    """Return what a worker said as a line of ours: it may have been told what to say."""
    text = " ".join(payload.decode("utf-8", "replace").split())[:_LINE]
    return "".join(character if character.isprintable() else "?" for character in text)


def _parse_ended(payload: bytes) -> Ended:
    try:
        match json.loads(payload):
            case {
                "code": int() | None as code,
                "trap": str() | None as trap,
                "user_s": float() | int() as user_s,
                "system_s": float() | int() as system_s,
                "memory_bytes": int() as memory_bytes,
            } if all(0 <= each < _SANE for each in (user_s, system_s, memory_bytes)):
                return Ended((code or 0) & 0xFF, trap, user_s, system_s, memory_bytes)
    except (ValueError, RecursionError) as error:
        raise ProtocolViolation("a worker told the end of a call in no JSON") from error
    raise ProtocolViolation("a worker told the end of a call in words that mean nothing")


def limit_of(ended: WorkerEnded, what: str) -> CloisterError:
    """Return why a worker ended that was to do something else than a call."""
    if ended.result.reason.value == "memory":
        return Exhausted(f"{what} took more memory than it may have", limit="memory")
    return GuestError(f"{what} failed: {ended}; {_line(ended.log[-_LINE:])}")
