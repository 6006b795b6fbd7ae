"""Python kernels of one sandbox: one process has ipykernel ready, each session is a fork of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

from cloister.e2b.interpreter.kernel import Conversation, Frame, getting_ready, unavailable
from cloister.e2b.interpreter.library import shown_library
from cloister.e2b.people import Person
from cloister.errors import CloisterError, GuestError, NotFound, ProtocolViolation
from cloister.sandbox import Process, Sandbox
from cloister.wire.streams import Incoming

_SOURCE = Path(__file__).with_name("inside_python.py").read_text()
_CHARTS = Path(__file__).with_name("inside_charts.py").read_text()
_READY_S = 60.0
_LINE_BYTES = 4096


class PythonNursery:
    """Where Python kernels of one sandbox come from. Made once, and warm from then on."""

    def __init__(self, sandbox: Sandbox, person: Person, variables: Mapping[str, str]) -> None:
        self._sandbox = sandbox
        self._person = person
        self._variables = variables
        self._process: Process | None = None
        self._port = 0
        self._starting: asyncio.Task[None] | None = None
        self._reading: list[asyncio.Task[None]] = []

    async def warm(self) -> None:
        """Return when kernels are to be had; the first who waits starts it."""
        if self._process is not None and self._process.returncode is not None:
            # Somebody inside ended it: the next session finds a new one.
            self._process = self._starting = None
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
            # Whoever waits for it may have left: then nobody asks how it went.
            self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await asyncio.shield(self._starting)
        except CloisterError:
            self._starting = None
            raise

    async def kernel(self, cwd: str) -> PythonKernel:
        """Return a kernel of its own, with nothing in it."""
        await self.warm()
        return await PythonKernel.connect(self, self._sandbox, self._port, cwd)

    async def tell(self, words: str) -> None:
        """Have the parent of the kernels do something to one of them."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(GuestError):
                await self._process.stdin.write(words.encode())

    async def close(self) -> None:
        """End all kernels."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        if self._process is not None:
            await self._process.stop()

    async def _start(self) -> None:
        env = {**self._person.variables, **self._variables, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            process = await self._sandbox.start(
                ["python3", "-c", _SOURCE, _CHARTS, *shown_library(self._sandbox)],
                cwd=self._person.home,
                env=env,
                user=self._person.user,
                stdin=True,
            )
        except NotFound:
            raise unavailable("python", "the image has no python3; add it") from None
        async with getting_ready(process, _READY_S):
            self._port = await read_port(process.stdout)
        self._process = process
        streams: list[Incoming] = [process.stdout]
        if process.stderr is not None:
            streams.append(process.stderr)
        self._reading = [asyncio.ensure_future(discard(stream)) for stream in streams]


async def read_port(stream: Incoming) -> int:
    """Return the port that a kernel says it listens on."""
    line = b""
    while b"\n" not in line:
        chunk = await stream.read()
        line += chunk
        if not chunk or len(line) > _LINE_BYTES:
            raise GuestError(
                "the kernel could not be started; look at its interpreter in the image"
            )
    try:
        said = json.loads(line.partition(b"\n")[0])
    except ValueError:
        raise ProtocolViolation("a kernel answers with something other than JSON") from None
    if isinstance(said, dict) and "missing" in said:
        raise unavailable(
            "python",
            "ipykernel is neither in the image nor installed on the host; "
            "add it to the image, or run `cloister interpreter install`",
        )
    port = said.get("port") if isinstance(said, dict) else None
    if not isinstance(port, int) or not 0 < port < 65_536:
        raise ProtocolViolation("a kernel answers without a port")
    return port


async def discard(stream: Incoming) -> None:
    """Read a stream to its end, for nobody."""
    with contextlib.suppress(CloisterError):
        async for _ in stream:
            continue


class PythonKernel:
    """One Python session."""

    def __init__(
        self, nursery: PythonNursery, conversation: Conversation, pid: int, cwd: str
    ) -> None:
        self._nursery = nursery
        self._conversation = conversation
        self._pid = pid
        self._cwd: str | None = cwd

    @classmethod
    async def connect(
        cls, nursery: PythonNursery, sandbox: Sandbox, port: int, cwd: str
    ) -> PythonKernel:
        """Have a kernel forked, and return it once it listens."""
        conversation = Conversation(*await sandbox.dial(port))
        try:
            async with asyncio.timeout(_READY_S):
                hello = await conversation.receive()
        except TimeoutError:
            conversation.close()
            raise GuestError(f"the kernel was not ready within {_READY_S:g} s") from None
        except BaseException:
            conversation.close()
            raise
        pid = hello.get("pid")
        if not isinstance(pid, int):
            conversation.close()
            raise ProtocolViolation("a kernel does not say which process it is")
        return cls(nursery, conversation, pid, cwd)

    async def execute(self, code: str, variables: Mapping[str, str]) -> AsyncGenerator[Frame, None]:
        """Run a cell; yield what comes of it."""
        request = {"code": code, "env_vars": dict(variables), "cwd": self._cwd}
        self._cwd = None
        await self._conversation.send(request)
        async for frame in self._conversation.until_end():
            yield frame

    async def interrupt(self) -> None:
        """Stop what runs."""
        await self._nursery.tell(f"interrupt {self._pid}\n")

    async def settle(self, timeout_s: float) -> bool:
        """Wait for the end of what was interrupted; whether it came."""
        return await self._conversation.settle(timeout_s)

    async def close(self) -> None:
        """End it and everything it started."""
        await self._nursery.tell(f"kill {self._pid}\n")
        self._conversation.close()
