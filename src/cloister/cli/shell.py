"""`cloister shell`: an interactive terminal in a new sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from typing import Any

import click

from cloister.cli import outlet, session
from cloister.cli.options import sandbox_options
from cloister.cli.run import parse_wanted
from cloister.cli.telling import explain_limit, explain_usage
from cloister.cli.wanted import Wanted
from cloister.model import UNLIMITED, Reason, parse_command, parse_cwd
from cloister.sandbox import Sandbox

# What a program that was killed may have left on: the other screen, mouse reports, pasting marks,
# a hidden cursor, colours, the other character set.
_CALM = b"\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?25h\x1b[0m\x1b(B"


@click.command(context_settings={"allow_interspersed_args": False})
@sandbox_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def shell(command: tuple[str, ...], **options: Any) -> int:
    """Open an interactive terminal in a new sandbox, or in one that is kept.

    COMMAND is the program to run there, bash unless named. It may do to this terminal what any
    program may. The sandbox lives until it ends: only limits that are named, here or in a
    policy file, end it earlier.
    """
    if command:
        parse_command(list(command))
    return session.run_until_signal(lambda: _shell(options, command))


async def _shell(options: dict[str, Any], command: tuple[str, ...]) -> int:
    wanted = await parse_wanted(options, {"wall": UNLIMITED, "lifetime": UNLIMITED})
    return await interact(wanted, command)


async def interact(wanted: Wanted, command: tuple[str, ...]) -> int:
    """Run a program of the sandbox on our terminal, a shell unless named."""
    if wanted.cwd is not None:
        parse_cwd(wanted.cwd)
    if not (session.is_terminal(0) and session.is_terminal(1)):
        raise click.UsageError(
            "a terminal is needed on both standard input and output; "
            "use `cloister run -- COMMAND` without one"
        )
    async with session.opened(wanted) as place:
        program = command or await _default_program(place)
        process = await _start(place, wanted, program)
        with _raw_terminal() as terminal, _following_size(process, terminal):
            keys = None
            if process.stdin is not None:
                keys = asyncio.create_task(outlet.feed(0, process.stdin))
            screen = asyncio.create_task(outlet.drain(process.stdout, 1, neutral=False))
            reason = None
            try:
                result = await session.wait(place, process)
                reason = result.reason
                await screen
            finally:
                if keys is not None:
                    keys.cancel()
                screen.cancel()
                if reason not in (Reason.EXIT, Reason.SIGNAL):
                    _calm()
        await session.end_step(place, program)
        explain_limit(result, wanted.limits, wanted.policy.volumes)
        if wanted.usage:
            explain_usage(result)
    return session.exit_code(result)


async def _default_program(place: session.Place) -> tuple[str, ...]:
    if isinstance(place, Sandbox):
        return ("/bin/bash",) if await place.files.exists("/bin/bash") else ("/bin/sh",)
    # Asked where it is: files are not among what a process answers for.
    return ("/bin/sh", "-c", "if [ -x /bin/bash ]; then exec /bin/bash; else exec /bin/sh; fi")


async def _start(place: session.Place, wanted: Wanted, program: tuple[str, ...]) -> session.Running:
    wall = wanted.limits.wall
    size = os.get_terminal_size(1)
    env = {"TERM": os.environ.get("TERM", "xterm-256color"), "SHELL": program[0]}
    env |= wanted.policy.env
    return await session.start(
        place,
        wanted,
        program,
        env=env,
        timeout=UNLIMITED if wall is None else wall,
        pty=(max(1, size.lines), max(1, size.columns)),
    )


class _Terminal:
    """Our terminal in raw mode, and how it was before."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._before = termios.tcgetattr(fd)

    def make_raw(self) -> None:
        tty.setraw(self._fd, termios.TCSADRAIN)

    def restore(self) -> None:
        # Gone with the window it was in: then there is nothing to restore.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)


@contextlib.contextmanager
def _raw_terminal() -> Iterator[_Terminal]:
    terminal = _Terminal(0)
    terminal.make_raw()
    try:
        yield terminal
    finally:
        terminal.restore()


@contextlib.contextmanager
def _following_size(process: session.Running, terminal: _Terminal) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def resize() -> None:
        size = os.get_terminal_size(1)
        if size.lines and size.columns:
            process.resize(size.lines, size.columns)

    def resume() -> None:
        # Stopped and continued from outside: the shell there has set the terminal to its liking.
        terminal.make_raw()
        resize()

    loop.add_signal_handler(signal.SIGWINCH, resize)
    loop.add_signal_handler(signal.SIGCONT, resume)
    # Between asking for the size and watching it, it may have changed.
    resize()
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        loop.remove_signal_handler(signal.SIGCONT)


def _calm() -> None:
    with contextlib.suppress(OSError):
        os.write(1, _CALM)
    sys.stderr.flush()
