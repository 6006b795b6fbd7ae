"""A program with a terminal: size, resizing, job control, and the last of its output."""

from __future__ import annotations

import pytest

from cloister import Process, Reason, RequestError, Sandbox


class Screen:
    """Reads what a terminal shows, up to something expected; what follows it is kept."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._held = b""

    async def wait_for(self, wanted: str) -> str:
        while wanted.encode() not in self._held:
            chunk = await self._process.stdout.read()
            assert chunk, f"the terminal ended with {self._held!r}; {wanted!r} never came"
            self._held += chunk
        before, _, self._held = self._held.partition(wanted.encode())
        return before.decode(errors="replace")


async def read_all(process: Process) -> str:
    return b"".join([chunk async for chunk in process.stdout]).decode(errors="replace")


async def test_a_program_has_a_terminal_when_asked_for_one(sandbox: Sandbox) -> None:
    source = "import os; print([os.isatty(n) for n in range(3)], os.ttyname(0), os.environ['TERM'])"
    process = await sandbox.start(["python3", "-c", source], pty=True)
    said = await read_all(process)
    assert said.startswith("[True, True, True] /dev/pts/"), said
    assert "xterm" in said
    assert (await process.wait()).ok
    without = await sandbox.run(["python3", "-c", "import os; print(os.isatty(1))"])
    assert without.stdout == "False\n"


async def test_two_terminals_are_two(sandbox: Sandbox) -> None:
    first = await sandbox.start(["sh", "-c", "tty; read line"], pty=True)
    second = await sandbox.start(["sh", "-c", "tty; read line"], pty=True)
    names = {await Screen(one).wait_for("\n") for one in (first, second)}
    assert len(names) == 2
    for one in (first, second):
        one.kill()
        await one.wait()


async def test_the_size_is_the_one_asked_for(sandbox: Sandbox) -> None:
    process = await sandbox.start(["stty", "size"], pty=(31, 117))
    assert await read_all(process) == "31 117\r\n"
    process = await sandbox.start(["stty", "size"], pty=True)
    assert await read_all(process) == "24 80\r\n"


async def test_a_resize_is_told_to_the_program(sandbox: Sandbox) -> None:
    source = """
import os, signal
def resized(*_): os.write(1, b"size %d %d." % os.get_terminal_size(0)[::-1])
signal.signal(signal.SIGWINCH, resized)
os.write(1, b"up")
os.read(0, 1)
"""
    process = await sandbox.start(["python3", "-c", source], pty=(24, 80))
    screen = Screen(process)
    await screen.wait_for("up")
    process.resize(50, 132)
    await screen.wait_for("size 50 132.")
    assert process.stdin is not None
    await process.stdin.write(b"\n")
    assert (await process.wait()).ok


@pytest.mark.parametrize("size", [(0, 80), (24, 0), (-1, 80), (65_536, 80)])
async def test_an_impossible_size_is_the_callers_error(
    sandbox: Sandbox, size: tuple[int, int]
) -> None:
    with pytest.raises(RequestError):
        await sandbox.start(["true"], pty=size)
    process = await sandbox.start(["sleep", "1000"], pty=True)
    with pytest.raises(RequestError):
        process.resize(*size)
    process.resize(25, 81)
    process.kill()
    assert (await process.wait()).reason is Reason.CANCELLED


async def test_only_a_terminal_can_be_resized(sandbox: Sandbox) -> None:
    process = await sandbox.start(["sleep", "1000"])
    with pytest.raises(RequestError):
        process.resize(24, 80)
    process.kill()
    await process.wait()


async def test_job_control_stops_continues_and_interrupts(sandbox: Sandbox) -> None:
    shell = await sandbox.start(["bash", "--norc", "--noprofile", "-i"], pty=True)
    assert shell.stdin is not None
    screen = Screen(shell)
    await shell.stdin.write(b"PS1='ready'': '\n")
    await screen.wait_for("ready: ")
    # Spelt so that the echo of the command is not taken for its output.
    await shell.stdin.write(b"sh -c 'echo u''p; exec cat'\n")
    await screen.wait_for("up\r\n")
    # Twice: once from the terminal, once from the program, which is in the foreground.
    await shell.stdin.write(b"marker\n")
    await screen.wait_for("marker\r\nmarker\r\n")
    await shell.stdin.write(b"\x1a")
    await screen.wait_for("Stopped")
    await screen.wait_for("ready: ")
    await shell.stdin.write(b"fg\n")
    await screen.wait_for("exec cat'\r\n")
    await shell.stdin.write(b"again\n")
    await screen.wait_for("again\r\nagain\r\n")
    await shell.stdin.write(b"\x03")
    await screen.wait_for("ready: ")
    await shell.stdin.write(b"exit 3\n")
    result = await shell.wait()
    assert (result.exit_code, result.reason) == (3, Reason.EXIT)


async def test_the_end_of_input_is_a_key(sandbox: Sandbox) -> None:
    process = await sandbox.start(["cat"], pty=True)
    assert process.stdin is not None
    await process.stdin.write(b"line\n\x04")
    assert (await process.wait()).ok
    assert await read_all(process) == "line\r\nline\r\n"


async def test_everything_said_before_the_end_arrives(sandbox: Sandbox) -> None:
    process = await sandbox.start("seq 1 30000", pty=True)
    said = await read_all(process)
    assert said == "".join(f"{n}\r\n" for n in range(1, 30_001))
    assert (await process.wait()).ok


async def test_a_terminal_belongs_to_the_user(sandbox: Sandbox) -> None:
    process = await sandbox.start(
        'stat -c %u "$(tty)"; test -w "$(tty)" && echo writable', pty=True
    )
    assert await read_all(process) == "1000\r\nwritable\r\n"
