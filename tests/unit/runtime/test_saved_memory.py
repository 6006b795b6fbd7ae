"""What a runsc that was taken over leaves where memory is saved leads to nothing of the host."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
from pathlib import Path

import pytest

from cloister.errors import LaunchFailed, ProtocolViolation
from cloister.runtime.gvisor.bundle import restoring
from cloister.runtime.gvisor.program import Runsc
from cloister.runtime.gvisor.saving import RELEASE, require_release, save, write_release
from cloister.runtime.plan import Kernel

RUNSC = Runsc(Path("/runsc"), "release-1", "systrap")
KERNEL = Kernel(
    argv=("/cell", "warden", "/runsc", "run", "--bundle=/", "it", "--", "/runsc", "checkpoint"),
    shown=(("runsc", "/runsc"),),
    made=(),
    capabilities=0,
)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    place = tmp_path / "saved"
    place.mkdir()
    (place / "pages.img").write_bytes(b"memory")
    return place


def test_the_release_is_not_written_through_a_link(files: Path, tmp_path: Path) -> None:
    target = tmp_path / "of-the-host"
    target.write_text("as it was")
    (files / RELEASE).symlink_to(target)
    write_release(files, RUNSC)
    assert target.read_text() == "as it was"
    assert not (files / RELEASE).is_symlink()
    require_release(files, RUNSC)


def test_only_plain_files_of_memory_are_shown_to_who_goes_on(files: Path) -> None:
    write_release(files, RUNSC)
    assert ("pages.img", str(files / "pages.img")) in restoring(KERNEL, files, b"").shown
    (files / "more.img").symlink_to("/etc")
    with pytest.raises(ProtocolViolation, match="plain file"):
        restoring(KERNEL, files, b"")
    (files / "more.img").unlink()
    # It would stand in for a program of ours.
    (files / "cell").write_bytes(b"\x7fELF")
    with pytest.raises(ProtocolViolation, match="no part of memory"):
        restoring(KERNEL, files, b"")


def test_what_programs_read_of_renewals_is_there_before_they_run(files: Path) -> None:
    began = dataclasses.replace(KERNEL, made=(("config.json", b"{}"), ("told/renewal", b"0")))
    made = restoring(began, files, b"renewal=1\n").made
    assert made == (("config.json", b"{}"), ("told/renewal", b"renewal=1\n"))


def test_a_pipe_is_not_waited_for(files: Path) -> None:
    os.mkfifo(files / RELEASE)
    with pytest.raises(ProtocolViolation, match="plain file"):
        require_release(files, RUNSC)


async def test_a_warden_that_is_killed_while_it_is_asked_to_save_is_no_surprise() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    # What it was told is not read any more, and so the rest of what it said is not either.
    asyncio.get_running_loop().call_soon(theirs.close)
    with ours, pytest.raises(LaunchFailed, match="does not say why"):
        await save(ours)
