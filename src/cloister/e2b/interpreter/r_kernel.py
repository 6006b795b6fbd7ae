"""A session of R: one interpreter that stays, each cell evaluated in its global environment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from pathlib import Path

from cloister.e2b.interpreter.kernel import Frame, getting_ready, unavailable
from cloister.e2b.interpreter.marked_streams import MarkedKernel, MarkedStreams
from cloister.e2b.interpreter.python_kernel import read_port
from cloister.e2b.people import Person
from cloister.errors import NotFound
from cloister.sandbox import Process, Sandbox

_SOURCE = Path(__file__).with_name("inside_r.R").read_text()
_VARIABLE = "CLOISTER_SESSION"
_COMMAND = (
    *("R", "--slave", "--no-save", "--no-restore", "--no-readline"),
    *("-e", f"eval(parse(text=Sys.getenv('{_VARIABLE}')))"),
)
_READY_S = 60.0


class RKernel(MarkedKernel):
    """One R session."""

    def __init__(self, process: Process, cells: asyncio.StreamWriter, cwd: str) -> None:
        self._process = process
        self._cells = cells
        self._streams = MarkedStreams(process, self._hand_over)
        self._cwd = cwd
        self._count = 0

    @classmethod
    async def start(
        cls, sandbox: Sandbox, person: Person, variables: Mapping[str, str], cwd: str
    ) -> RKernel:
        """Start a session, and return it once it listens."""
        env = {**person.variables, **variables, _VARIABLE: _SOURCE}
        try:
            process = await sandbox.start(_COMMAND, cwd=person.home, env=env, user=person.user)
        except NotFound:
            raise unavailable("r", "the image has no R; add r-base-core") from None
        async with getting_ready(process, _READY_S):
            _, cells = await sandbox.dial(await read_port(process.stdout))
        return cls(process, cells, cwd)

    async def execute(self, code: str, variables: Mapping[str, str]) -> AsyncGenerator[Frame, None]:
        """Run a cell; yield what comes of it."""
        self._count += 1
        yield {"type": "number_of_executions", "execution_count": self._count}
        cwd, self._cwd = self._cwd, ""
        await self._streams.begin(partial(_cell, cwd, code, variables))
        async for frame in self._streams.until_end():
            if frame["type"] != "status":
                yield frame
        yield {"type": "end_of_execution"}

    async def _hand_over(self, line: bytes) -> None:
        self._cells.write(line)
        await self._cells.drain()

    async def close(self) -> None:
        """End it and everything it started."""
        self._cells.close()
        await super().close()


def _cell(cwd: str, code: str, variables: Mapping[str, str], mark: str) -> bytes:
    words = [mark, cwd, code, *(word for pair in variables.items() for word in pair)]
    return " ".join(word.encode("utf-8", "replace").hex() for word in words).encode() + b"\n"
