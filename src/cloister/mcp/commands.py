"""The commands of one client: started, followed, ended, and what they printed kept for a while."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from cloister.errors import CloisterError
from cloister.mcp.failure import ToolFailure
from cloister.mcp.questions import InputNeeded, Pending, Questions
from cloister.mcp.results import RunAnswer
from cloister.mcp.spool import Page, Spool
from cloister.model import Reason, Result, quote
from cloister.sandbox import Process, Sandbox

# Both streams on one pipe, so that lines stay in the order they were printed in.
_SHELL = (
    "/bin/sh",
    "-c",
    'exec 2>&1; [ -x /bin/bash ] && exec /bin/bash -c "$1"; exec /bin/sh -c "$1"',
    "sh",
)
_MAXIMUM_HELD_BYTES = 64 * 2**20
_MAXIMUM_ENDED = 64
_TELL_EVERY_S = 1.0


class Caller(Protocol):
    """Whoever waits for a tool: hears how far it is, and can perhaps ask a person."""

    @property
    def can_ask(self) -> bool:
        """Whether its client has a person to ask."""

    async def tell(self, seconds: float, line: str) -> None:
        """Tell how long it takes already, and what was printed last."""

    async def ask(self, pending: Pending) -> None:
        """Have a person asked, or raise InputNeeded if they can be only between two calls."""


class Running:
    """One command and what it printed."""

    def __init__(self, name: str, process: Process, spool: Spool) -> None:
        self.name = name
        self.process = process
        self.spool = spool
        self.result: Result | None = None
        self.error: CloisterError | None = None
        self.follower = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        try:
            while chunk := await self.process.stdout.read():
                self.spool.feed(chunk)
            self.result = await self.process.wait()
        except CloisterError as error:
            self.error = error
        finally:
            self.spool.close()

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return self.spool.closed

    def answer(self, page: Page) -> RunAnswer:
        """Return how it stands, with a part of its output."""
        if self.error is not None:
            raise self.error
        result = self.result
        return RunAnswer(
            process=self.name,
            state="running" if result is None else "ended",
            exit_code=None if result is None else result.exit_code,
            reason=None if result is None else result.reason.value,
            output=page.text,
            next_cursor=page.next_cursor,
            total_bytes=self.spool.total,
            wall_s=None if result is None else round(result.wall_s, 3),
        )


class Commands:
    """All commands of one sandbox, by name."""

    def __init__(self) -> None:
        self._known: dict[str, Running] = {}
        self._started = 0

    async def start(
        self, sandbox: Sandbox, command: str, cwd: str | None, timeout_s: float | None
    ) -> Running:
        """Start a command; without a timeout it ends by itself or with the sandbox."""
        self._make_room()
        options = {} if timeout_s is None else {"timeout": timeout_s}
        process = await sandbox.start([*_SHELL, command], cwd=cwd, **options)  # type: ignore[arg-type]
        self._started += 1
        running = Running(f"p{self._started}", process, Spool())
        self._known[running.name] = running
        return running

    async def finish(self, running: Running, caller: Caller, questions: Questions) -> None:
        """Wait for its end and tell how far it is meanwhile; if nobody waits any more, end it.

        What must be asked of a person meanwhile is asked through the caller, if they can.
        """
        seconds = 0.0
        try:
            while not running.ended:
                await _first_of(running.follower, questions if caller.can_ask else None)
                pending = questions.take() if caller.can_ask else None
                if pending is not None:
                    await _ask(caller, pending, running)
                elif not running.ended:
                    seconds += _TELL_EVERY_S
                    await caller.tell(seconds, running.spool.last_line())
        except InputNeeded:
            # Whoever asked comes back with the answer; until then its own time runs.
            raise
        except BaseException:
            # Whoever asked has cancelled or is gone: no process is left running for nobody.
            await asyncio.shield(running.process.stop())
            raise

    def find(self, name: str) -> Running:
        """Return the command of that name."""
        running = self._known.get(name)
        if running is None:
            known = ", ".join(list(self._known)[-8:]) or "none"
            raise ToolFailure(f"no command {quote(name)} is known here; there are: {known}")
        return running

    async def stop(self, running: Running) -> None:
        """End a command and everything it started."""
        await running.process.stop()
        await running.follower

    def forget_all(self) -> None:
        """The sandbox is another one, or gone."""
        for running in self._known.values():
            running.follower.cancel()
        self._known.clear()

    def _make_room(self) -> None:
        """Forget the oldest that have ended, where too much is held."""
        while True:
            ended = [each for each in self._known.values() if each.ended]
            held = sum(each.spool.held for each in self._known.values())
            if not ended or (held <= _MAXIMUM_HELD_BYTES and len(ended) < _MAXIMUM_ENDED):
                return
            del self._known[ended[0].name]


async def _first_of(follower: asyncio.Task[None], questions: Questions | None) -> None:
    """Wait for the end of a command, a question, or a second."""
    waited: set[asyncio.Task[None]] = {follower}
    news = None
    if questions is not None:
        news = asyncio.ensure_future(questions.wait_new())
        waited.add(news)
    try:
        await asyncio.wait(waited, timeout=_TELL_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if news is not None:
            news.cancel()


async def _ask(caller: Caller, pending: Pending, running: Running) -> None:
    """Have it asked until it is answered, there or elsewhere, or its command has ended."""
    asking = asyncio.ensure_future(caller.ask(pending))
    try:
        waited: set[asyncio.Future[Any]] = {asking, pending.answer, running.follower}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            asking.result()
    finally:
        asking.cancel()


def describe(answer: RunAnswer) -> str:
    """Return how a command stands as one line below its output."""
    if answer.state == "running":
        return f"[{answer.process} is running; output and stop take its name]"
    after = f"after {answer.wall_s:.3g} s" if answer.wall_s is not None else ""
    match answer.reason:
        case Reason.EXIT:
            return f"[exit code {answer.exit_code} {after}]"
        case Reason.TIMEOUT:
            return (
                f"[killed {after}: the time was over; raise timeout_s, or use background for what "
                "takes long]"
            )
        case Reason.MEMORY:
            return f"[killed {after}: out of memory; use less, or ask for a larger sandbox]"
        case Reason.PIDS:
            return f"[failed {after}: too many processes at once; start fewer]"
        case Reason.DISK:
            return f"[failed {after}: the disk is full; remove something]"
        case Reason.CANCELLED:
            return f"[stopped {after}]"
    return f"[ended by a signal, exit code {answer.exit_code}, {after}]"
