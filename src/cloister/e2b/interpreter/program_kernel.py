"""A session that is a program of its own inside: JavaScript, or TypeScript, by node."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

from cloister.e2b.interpreter.kernel import Conversation, Frame, getting_ready, unavailable
from cloister.e2b.interpreter.python_kernel import discard, read_port
from cloister.e2b.people import Person
from cloister.errors import CloisterError, NotFound
from cloister.sandbox import Process, Sandbox
from cloister.wire.streams import Incoming

_SOURCE = Path(__file__).with_name("inside_node.js").read_text()
# What a session is told of itself, until it has read it.
_VARIABLE = "CLOISTER_SESSION"
_READY_S = 30.0


class NodeKernel:
    """One JavaScript session; of TypeScript too, where node or the image takes types away."""

    def __init__(self, process: Process, conversation: Conversation, cwd: str) -> None:
        self._process = process
        self._conversation = conversation
        self._cwd: str | None = cwd
        streams: list[Incoming] = [process.stdout]
        if process.stderr is not None:
            streams.append(process.stderr)
        # What its children write past it is read, or they would wait; it is not shown.
        self._reading = [asyncio.ensure_future(discard(stream)) for stream in streams]

    @classmethod
    async def start(
        cls,
        sandbox: Sandbox,
        person: Person,
        variables: Mapping[str, str],
        cwd: str,
        *,
        has_types: bool = False,
    ) -> NodeKernel:
        """Start a session, and return it once it listens."""
        language = "typescript" if has_types else "javascript"
        env = {**person.variables, **variables, "NODE_NO_WARNINGS": "1"}
        env[_VARIABLE] = language
        try:
            process = await sandbox.start(
                ["node", "-e", _SOURCE], cwd=person.home, env=env, user=person.user
            )
        except NotFound:
            raise unavailable(language, "the image has no node; add it") from None
        async with getting_ready(process, _READY_S):
            port = await read_port(process.stdout)
            conversation = Conversation(*await sandbox.dial(port))
            ready = await conversation.receive()
            if has_types and ready.get("strips_types") is not True:
                raise unavailable(
                    "typescript",
                    "the image has neither node 22.13 or newer nor TypeScript; add one of them",
                )
        return cls(process, conversation, cwd)

    async def execute(self, code: str, variables: Mapping[str, str]) -> AsyncGenerator[Frame, None]:
        """Run a cell; yield what comes of it."""
        request = {"code": code, "env_vars": dict(variables), "cwd": self._cwd}
        self._cwd = None
        await self._conversation.send(request)
        async for frame in self._conversation.until_end():
            yield frame

    async def interrupt(self) -> None:
        """Stop what waits; a loop that never waits ends with the session."""
        with contextlib.suppress(CloisterError):
            self._process.signal(signal.SIGINT)

    async def settle(self, timeout_s: float) -> bool:
        """Wait for the end of what was interrupted; whether it came."""
        return await self._conversation.settle(timeout_s)

    async def close(self) -> None:
        """End it and everything it started."""
        self._conversation.close()
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        await self._process.stop()
