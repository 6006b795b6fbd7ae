"""What the tools about commands do: run, output and stop."""

from __future__ import annotations

import asyncio
import contextlib

from cloister.mcp import arguments as ask
from cloister.mcp import results as told
from cloister.mcp.commands import Caller, Running, describe
from cloister.mcp.desk import Desk
from cloister.mcp.failure import ToolFailure
from cloister.mcp.questions import InputNeeded
from cloister.mcp.tool import Told
from cloister.model import format_duration

_USUAL_TIMEOUT_S = 120.0


async def run(desk: Desk, given: ask.RunArguments, caller: Caller) -> Told:
    """Run a command to its end, or start it and let it run on."""
    sandbox = await desk.sandbox()
    most_s = desk.policy.limits.wall
    timeout_s = given.timeout_s or min(_USUAL_TIMEOUT_S, most_s or _USUAL_TIMEOUT_S)
    if most_s is not None and timeout_s > most_s:
        raise ToolFailure(
            f"timeout_s is {timeout_s:g}; the most here is {format_duration(most_s)}, "
            "so ask for less, or use background"
        )
    cwd = None if given.cwd is None else await desk.resolve(given.cwd)
    limit_s = None if given.background else timeout_s
    running = await desk.commands.start(sandbox, given.command, cwd, limit_s)
    if not given.background:
        return await finish(desk, given, running, caller)
    answer = running.answer(running.spool.overview(running.name))
    return Told(answer, _shown(answer))


async def finish(desk: Desk, given: ask.RunArguments, running: Running, caller: Caller) -> Told:
    """Wait for the end of a command, also of one that was left while a person was asked."""
    try:
        await desk.commands.finish(running, caller, desk.questions)
    except InputNeeded as needed:
        # Those who never came back are forgotten once their command has ended.
        desk.left = {id: each for id, each in desk.left.items() if not each.ended}
        desk.left[needed.pending.id] = running
        raise
    # Raises if the sandbox has ended; another one must not be made for the sake of a step.
    answer = running.answer(running.spool.overview(running.name))
    if desk.present is not None:
        await desk.present.end_step(given.command)
    return Told(answer, _shown(answer))


async def output(desk: Desk, given: ask.OutputArguments, caller: Caller) -> Told:
    """Return more of what a command printed."""
    running = desk.commands.find(given.process)
    if given.cursor > running.spool.total:
        raise ToolFailure(
            f"cursor is {given.cursor}; {given.process} has printed {running.spool.total} bytes, "
            "so use next_cursor of the last answer"
        )
    if given.wait_s and not running.ended:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(given.wait_s):
                await running.spool.wait_past(given.cursor)
    answer = running.answer(running.spool.page(given.cursor))
    return Told(answer, _shown(answer))


async def stop(desk: Desk, given: ask.StopArguments, caller: Caller) -> Told:
    """End a command and everything it started."""
    running = desk.commands.find(given.process)
    await desk.commands.stop(running)
    answer = running.answer(running.spool.overview(running.name))
    return Told(answer, _shown(answer))


def _shown(answer: told.RunAnswer) -> str:
    joint = "" if answer.output.endswith("\n") or not answer.output else "\n"
    return f"{answer.output}{joint}{describe(answer)}"
