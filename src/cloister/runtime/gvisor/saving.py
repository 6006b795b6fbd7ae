"""Has the memory of a sandbox written down by runsc, from beside it in its own wall."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from pathlib import Path

from cloister.errors import GuestGone, LaunchFailed, Unsupported
from cloister.runtime.gvisor.program import Runsc

# The file that says which runsc wrote the others, and alone can read them.
RELEASE = "release"
_SAVE = b"s"
# Memory is written at the speed of memory; this is for a runsc that does not answer.
_SAVE_S = 120.0
_MAX_LOG = 4096


def make_image_place(path: Path) -> None:
    """Make the directory that runsc may write to, empty."""
    if path.exists():
        shutil.rmtree(path)
    path.mkdir(mode=0o700)
    # Its ids are not known yet, and own nothing else; the directory above lets nobody in.
    path.chmod(0o777)


def write_release(files: Path, runsc: Runsc) -> None:
    """Note which runsc wrote the memory."""
    (files / RELEASE).write_text(_release(runsc))


def require_release(files: Path, runsc: Runsc) -> None:
    """Refuse memory that another runsc wrote: no two releases lay it out alike."""
    wrote, here = (files / RELEASE).read_text(), _release(runsc)
    if wrote != here:
        raise Unsupported(
            f"the memory was saved by runsc {wrote}, and here is {here}; install that one again, "
            "or give up the programs and go on from the disk"
        )


def _release(runsc: Runsc) -> str:
    return f"{runsc.version} {runsc.platform}"


async def save(word: socket.socket) -> None:
    """Say that memory is to be saved, and return when it is; runsc has ended then."""
    loop = asyncio.get_running_loop()
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    answered = asyncio.Event()
    loop.add_reader(reading, answered.set)
    try:
        try:
            socket.send_fds(word, [_SAVE], [writing])
        except OSError as error:
            raise GuestGone(f"the sandbox has ended: {error}", reason="gone") from error
        finally:
            os.close(writing)
        async with asyncio.timeout(_SAVE_S):
            await answered.wait()
        code = os.read(reading, 1)
    except TimeoutError:
        raise GuestGone(
            f"runsc did not save the memory within {_SAVE_S:g} s", reason="hung"
        ) from None
    finally:
        loop.remove_reader(reading)
        os.close(reading)
    if code != b"\0":
        raise LaunchFailed(f"runsc could not save the memory: {_said(word)}", step="checkpoint")


def _said(word: socket.socket) -> str:
    try:
        text = word.recv(_MAX_LOG).decode("utf-8", "replace").strip()
    except BlockingIOError:
        text = ""
    return text or "it does not say why"
