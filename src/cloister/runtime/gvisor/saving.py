"""Has the memory of a sandbox written down by runsc, from beside it in its own wall."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import stat
import time
from pathlib import Path

from cloister.errors import Busy, GuestGone, LaunchFailed, ProtocolViolation, Unsupported
from cloister.model import quote
from cloister.runtime.gvisor.program import Runsc
from cloister.wire import Link

# The file that says which runsc wrote the others, and alone can read them.
RELEASE = "release"
_SAVE = b"s"
# Memory is written at the speed of memory; this is for a runsc that does not answer.
_SAVE_S = 120.0
# How long programs have to close what cannot be saved, and how often that is looked at.
_SAVABLE_S = 2.0
_LOOK_AGAIN_S = 0.05
# Far more than a guest takes that has just been held still.
_ANSWER_S = 60.0
_MAX_LOG = 4096
_MAX_RELEASE = 1024
_IMAGE_SUFFIX = ".img"


def make_image_place(path: Path) -> None:
    """Make the directory that runsc may write to, empty."""
    if path.exists():
        shutil.rmtree(path)
    path.mkdir(mode=0o700)
    # Its ids are not known yet, and own nothing else; the directory above lets nobody in.
    path.chmod(0o777)


def write_release(files: Path, runsc: Runsc) -> None:
    """Note which runsc wrote the memory.

    One that was taken over may still run, and have made a link there to a file of the host's.
    """
    try:
        (files / RELEASE).unlink(missing_ok=True)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(files / RELEASE, flags, 0o644), "w") as file:
            file.write(_release(runsc))
    except OSError as error:
        raise ProtocolViolation(f"runsc wrote what is no memory: {error}") from error


def require_release(files: Path, runsc: Runsc) -> None:
    """Refuse memory that another runsc wrote: no two releases lay it out alike."""
    if RELEASE not in memory_names(files, with_release=True):
        raise ProtocolViolation("the saved memory does not say which runsc wrote it")
    with open(files / RELEASE, "rb") as file:
        wrote, here = file.read(_MAX_RELEASE).decode("utf-8", "replace"), _release(runsc)
    if wrote != here:
        raise Unsupported(
            f"the memory was saved by runsc {wrote}, and here is {here}; install that one again, "
            "or give up the programs and go on from the disk"
        )


def memory_names(files: Path, *, with_release: bool = False) -> list[str]:
    """Return what the files of saved memory are called; its writer must have ended.

    Each is shown to whoever goes on from it: a link would show a file of the host's instead.
    """
    names = sorted(path.name for path in files.iterdir())
    for name in names:
        if not stat.S_ISREG(os.lstat(files / name).st_mode):
            raise ProtocolViolation(f"runsc wrote {quote(name)}, which is no plain file")
        if name != RELEASE and not name.endswith(_IMAGE_SUFFIX):
            raise ProtocolViolation(f"runsc wrote {quote(name)}, which is no part of memory")
    return [name for name in names if with_release or name != RELEASE]


def _release(runsc: Runsc) -> str:
    return f"{runsc.version} {runsc.platform}"


async def hold_savable(link: Link) -> None:
    """Have the guest hold still in a moment in which runsc can save everything.

    Over a file that is open and has no name any more it would end, and all programs with it.
    """
    deadline = time.monotonic() + _SAVABLE_S
    while True:
        try:
            return await link.hold()
        except Busy as error:
            if time.monotonic() > deadline:
                raise Busy(
                    f"memory cannot be saved on gVisor while a program has a file open that was "
                    f"deleted or replaced ({error.message}); close it, or save the disk alone",
                    holder=error.holder,
                ) from None
        # Nobody is told when a program closes a file.
        await asyncio.sleep(_LOOK_AGAIN_S)


async def goes_on(link: Link) -> bool:
    """Let the guest go on whose memory was not saved; False if it does not: it ends of that."""
    try:
        link.proceed()
        await link.wait_answer(_ANSWER_S)
    except GuestGone:
        return False
    return True


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
    except (BlockingIOError, ConnectionResetError):
        # It says nothing, or was killed before it could.
        text = ""
    return text or "it does not say why"
