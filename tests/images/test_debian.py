"""mmdebstrap runs as nobody in particular, and what it makes is unpacked like any layer."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cloister import Image, Sandbox
from cloister.build import debian
from cloister.build.progress import BuildProgress
from cloister.errors import HostError, ImageRefused, Unsupported

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
NOT_ROOT = "without root there are no rights to be without: mmdebstrap gives up those of the user"


@pytest.fixture
def told() -> list[BuildProgress]:
    return []


Fake = Callable[[str], None]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Puts a script in the place of mmdebstrap: it gets the same arguments, and the same rights."""
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path / "state"))
    programs = Path(tempfile.mkdtemp(dir="/tmp"))
    programs.chmod(0o755)
    monkeypatch.setattr(debian, "_PATH", f"{programs}:{PATH}")
    monkeypatch.setattr(debian, "find_sources", lambda suite: f"deb http://x.invalid {suite} main")

    def place(script: str) -> None:
        program = programs / "mmdebstrap"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    yield place
    shutil.rmtree(programs)


async def build(told: list[BuildProgress], *packages: str) -> Image:
    return await Image.debian("bookworm", "dev", include=packages, on_progress=told.append)


def output(told: list[BuildProgress]) -> str:
    return b"".join(each.output for each in told).decode()


async def test_its_archive_becomes_an_image(
    fake: Fake, told: list[BuildProgress], tar: Callable[..., bytes], tmp_path: Path
) -> None:
    archive = tmp_path / "a.tar"
    archive.write_bytes(tar(("etc/made", {"content": b"debian"}), ("dev/null", {"type": b"3"})))
    tmp_path.chmod(0o755)
    for above in tmp_path.parents:
        if above != Path("/") and above.stat().st_uid == os.geteuid() and above != Path("/tmp"):
            above.chmod(above.stat().st_mode | 0o055)
    fake(f'echo "$@" >&2; cat "${{7}}" >&2; cat {archive}')
    image = await build(told, "git", "python3-pip")
    said = output(told)
    assert (
        "--mode=unshare --format=tar --variant=minbase --include=git,python3-pip bookworm" in said
    )
    assert "deb http://x.invalid bookworm main" in said
    assert image.config["cmd"] == ["/bin/bash"]
    assert image.config["notes"] == ["1 devices were left out"]
    async with Sandbox(image="dev") as sandbox:
        assert await sandbox.files.read_text("/etc/made") == "debian"


async def test_it_has_no_rights_of_ours(
    fake: Fake, told: list[BuildProgress], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip(NOT_ROOT)
    secret = Path(tempfile.mkdtemp(dir="/tmp")) / "secret"
    secret.write_text("of ours")
    secret.parent.chmod(0o755)
    secret.chmod(0o600)
    monkeypatch.setenv("SECRET_OF_OURS", "of ours")
    fake(
        f"id -u >&2; cat /proc/self/uid_map >&2; cat {secret} >&2; env >&2; "
        f"touch {secret.parent}/x >&2 || echo cannot write >&2; head -c 1024 /dev/zero"
    )
    try:
        await build(told)
        said = output(told)
        first = int(said.splitlines()[1].split()[1])
        assert said.startswith("0\n") and first >= 0x7000_0000
        assert "cannot write" in said and "of ours" not in said
        assert not (secret.parent / "x").exists()
        assert secret.read_text() == "of ours"
    finally:
        shutil.rmtree(secret.parent)


async def test_one_that_fails_is_told_with_its_last_words(
    fake: Fake, told: list[BuildProgress]
) -> None:
    fake("echo E: no such package >&2; exit 25")
    with pytest.raises(HostError, match="exit 25; it said last: E: no such package"):
        await build(told)


async def test_what_is_no_archive_is_refused(fake: Fake, told: list[BuildProgress]) -> None:
    fake("echo this is no tar, however long it is made to look; head -c 2000 /dev/urandom")
    with pytest.raises(ImageRefused):
        await build(told)


async def test_a_cancelled_one_ends_and_takes_its_files_with_it(fake: Fake, tmp_path: Path) -> None:
    begun = asyncio.Event()
    fake("trap '' TERM; mkdir $TMPDIR/x; echo $TMPDIR >&2; exec sleep 600 >/dev/null")
    places: list[str] = []

    def watch(progress: BuildProgress) -> None:
        if progress.output:
            places.append(progress.output.decode().strip())
            begun.set()

    building = asyncio.create_task(Image.debian("bookworm", "dev", on_progress=watch))
    await begun.wait()
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert not Path(places[0]).parent.exists()
    assert not list((tmp_path / "state" / "builds").glob("spool-*"))


async def test_without_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "_PATH", "/nowhere")
    with pytest.raises(Unsupported, match="apt install mmdebstrap"):
        await Image.debian("bookworm", "dev")
