"""The programs of one sandbox that were started over the protocol, by number and by tag."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from cloister.e2b import fields
from cloister.e2b.people import Person
from cloister.e2b.refusal import CallRefused
from cloister.e2b.running import Running, Started
from cloister.errors import CloisterError, NotFound, RequestError
from cloister.sandbox import Sandbox
from cloister.server.traces import inside, work

# How long the end of a program can still be asked for.
_REMEMBERED_S = 30.0
_MAXIMUM_REMEMBERED = 1000


class ProcessTable:
    """What runs, and for a short time what did."""

    def __init__(self, sandbox: Sandbox, variables: Mapping[str, str]) -> None:
        self._sandbox = sandbox
        self._variables = variables
        self._running: dict[int, Running] = {}
        self._ended: dict[int, Running] = {}
        self.has_started = False
        self._first: asyncio.Task[None] | None = None

    def first(self, work: asyncio.Task[None]) -> None:
        """Have something done before the first program starts."""
        self._first = work

    async def start(self, message: Mapping[str, Any], person: Person) -> Running:
        """Start what a `StartRequest` asks for."""
        started, size = _read_request(message, person)
        argv = [started.program, *started.arguments]
        if self._first is not None:
            await asyncio.wait({self._first})
            self._first = None
        variables = {**person.variables, **self._variables, **started.variables}
        try:
            with work("start"):
                process = await self._sandbox.start(
                    argv,
                    cwd=started.cwd,
                    env=inside(variables),
                    user=person.user,
                    pty=size or False,
                    stdin=started.has_stdin and size is None,
                )
        except NotFound as error:
            raise CallRefused("invalid_argument", error.message) from None
        except RequestError as error:
            if error.message.startswith("working directory"):
                raise CallRefused(
                    "invalid_argument", f"cwd '{started.cwd}' does not exist"
                ) from None
            raise
        self.has_started = True
        running = Running(process, started)
        self._ended.pop(running.pid, None)
        self._running[running.pid] = running
        running.over.add_done_callback(lambda _: self._retire(running))
        return running

    def find(self, message: Mapping[str, Any], *, ended: bool = False) -> Running:
        """Return the program that a `ProcessSelector` names."""
        selector = fields.table(message, "process")
        tag = selector.get("tag")
        if isinstance(tag, str):
            for running in self._running.values():
                if running.started.tag == tag:
                    return running
            raise CallRefused("not_found", f"process with tag {tag[:256]} not found")
        pid = fields.integer(selector, "pid")
        found = self._running.get(pid)
        if found is None and ended:
            found = self._ended.get(pid)
        if found is None:
            raise CallRefused("not_found", f"process with pid {pid} not found")
        return found

    def list(self) -> list[dict[str, Any]]:
        """Return what runs, as a `ListResponse` shows it."""
        return [_describe(running) for running in self._running.values()]

    def leave_all(self, why: str) -> None:
        """End every stream; the programs are not told."""
        for running in self._running.values():
            running.leave(CallRefused("unavailable", why))

    async def close(self) -> None:
        """Let go of everything; the sandbox has ended, or ends with this."""
        everything = [*self._running.values(), *self._ended.values()]
        for running in everything:
            running.over.cancel()
        await asyncio.gather(*(running.over for running in everything), return_exceptions=True)
        self._running.clear()
        self._ended.clear()

    def _retire(self, running: Running) -> None:
        # The number may have gone to another program by now.
        if self._running.get(running.pid) is running:
            del self._running[running.pid]
            self._ended[running.pid] = running
            if len(self._ended) > _MAXIMUM_REMEMBERED:
                self._ended.pop(next(iter(self._ended)))
            asyncio.get_running_loop().call_later(_REMEMBERED_S, self._forget, running)

    def _forget(self, running: Running) -> None:
        if self._ended.get(running.pid) is running:
            del self._ended[running.pid]


def terminal_size(message: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return (rows, columns) of the terminal that a message asks for, if it does."""
    if message.get("pty") is None:
        return None
    size = fields.table(fields.table(message, "pty"), "size")
    return fields.integer(size, "rows", 24) or 24, fields.integer(size, "cols", 80) or 80


def _read_request(
    message: Mapping[str, Any], person: Person
) -> tuple[Started, tuple[int, int] | None]:
    config = fields.table(message, "process")
    program = fields.text(config, "cmd")
    if not program:
        raise CallRefused("invalid_argument", "process.cmd is empty; name a program")
    size = terminal_size(message)
    tag = message.get("tag")
    if tag is not None and not isinstance(tag, str):
        raise CallRefused("invalid_argument", "tag is not text")
    started = Started(
        program=program,
        arguments=tuple(fields.texts(config, "args")),
        variables=fields.text_table(config, "envs"),
        cwd=person.place(fields.text(config, "cwd")),
        tag=tag,
        has_stdin=fields.flag(message, "stdin", True),
        has_terminal=size is not None,
    )
    return started, size


def _describe(running: Running) -> dict[str, Any]:
    started = running.started
    config: dict[str, Any] = {
        "cmd": started.program,
        "args": list(started.arguments),
        "envs": started.variables,
        "cwd": started.cwd,
    }
    shown: dict[str, Any] = {"pid": running.pid, "config": config}
    if started.tag is not None:
        shown["tag"] = started.tag
    return shown


async def end(running: Running) -> None:
    """End a program with everything it started, and wait until it has ended."""
    running.process.kill()
    try:
        await running.process.wait()
    except CloisterError:
        return
