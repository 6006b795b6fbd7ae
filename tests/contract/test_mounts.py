"""Host directories inside: a copy unless told, read-only or writable where it was named so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloister import Exhausted, Limits, Mount, NotFound, RequestError


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A host directory with a file in it."""
    directory = tmp_path / "shared"
    directory.mkdir()
    (directory / "file").write_text("host\n")
    return directory


async def test_a_copy_is_the_sandboxs_own(make, shared: Path) -> None:
    async with make(mounts=[Mount(shared, "/workspace/shared")]) as sandbox:
        result = await sandbox.run("cat shared/file; echo inside > shared/file; touch shared/new")
        assert (result.stdout, result.stderr) == ("host\n", "")
        (shared / "later").touch()
        assert not await sandbox.files.exists("/workspace/shared/later")
    assert (shared / "file").read_text() == "host\n"
    assert sorted(path.name for path in shared.iterdir()) == ["file", "later"]


async def test_a_read_mount_shows_the_host_and_takes_nothing(make, shared: Path) -> None:
    async with make(mounts=[Mount(shared, "/mnt/shared", "read")]) as sandbox:
        (shared / "later").write_text("later\n")
        assert (await sandbox.run("cat /mnt/shared/*")).stdout == "host\nlater\n"
        refused = await sandbox.run(
            "echo x > /mnt/shared/file; touch /mnt/shared/new; rm /mnt/shared/file"
        )
        assert refused.stderr.count("Read-only file system") == 3
    assert (shared / "file").read_text() == "host\n"
    assert sorted(path.name for path in shared.iterdir()) == ["file", "later"]


async def test_a_write_mount_is_the_host_itself(make, shared: Path) -> None:
    async with make(mounts=[Mount(shared, "/workspace/shared", "write")]) as sandbox:
        (await sandbox.run("echo inside > shared/file; mkdir shared/d; touch shared/d/new")).check()
        assert (await sandbox.files.stat("/workspace/shared/file")).uid == 1000
        await sandbox.files.write("/workspace/shared/by-api", "x")
    assert (shared / "file").read_text() == "inside\n"
    mine = os.stat(shared)
    for name in ("file", "d", "d/new", "by-api"):
        status = os.stat(shared / name)
        assert (status.st_uid, status.st_gid) == (mine.st_uid, mine.st_gid), name


async def test_set_id_bits_do_not_reach_the_host(make, shared: Path) -> None:
    (shared / "tool").write_text("#!/bin/sh\n")
    async with make(mounts=[Mount(shared, "/workspace/shared", "write")]) as sandbox:
        refused = await sandbox.run("chmod u+s shared/tool")
        assert not refused.ok
        (await sandbox.run("chmod 755 shared/tool")).check()
    assert (shared / "tool").stat().st_mode & 0o7777 == 0o755


async def test_a_single_file_can_be_mounted(make, shared: Path) -> None:
    mounts = [
        Mount(shared / "file", "/workspace/one", "read"),
        Mount(shared / "file", "/workspace/two"),
    ]
    async with make(mounts=mounts) as sandbox:
        assert (await sandbox.run("cat one two")).stdout == "host\nhost\n"
        assert not (await sandbox.run("echo x > one")).ok
        assert (await sandbox.run("echo x > two")).ok


async def test_a_mount_may_be_deep_and_below_another(make, shared: Path, tmp_path: Path) -> None:
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    mounts = [
        Mount(tmp_path / "outer", "/srv/a/b", "read"),
        Mount(shared, "/srv/a/b/inner", "read"),
    ]
    async with make(mounts=mounts) as sandbox:
        assert (await sandbox.run("cat /srv/a/b/inner/file")).stdout == "host\n"


@pytest.mark.parametrize("mode", ["read", "write"])
async def test_a_link_on_the_way_to_a_source_is_refused(make, shared: Path, mode: str) -> None:
    link = shared.parent / "link"
    link.symlink_to(shared)
    with pytest.raises(RequestError, match="link"):
        await make(mounts=[Mount(link, "/mnt/shared", mode)]).open()
    async with make(mounts=[Mount(link.resolve(), "/mnt/shared", mode)]) as sandbox:
        assert (await sandbox.run("cat /mnt/shared/file")).stdout == "host\n"


@pytest.mark.parametrize("mode", ["copy", "read", "write"])
async def test_a_source_that_is_missing_stops_the_start(make, tmp_path: Path, mode: str) -> None:
    with pytest.raises(NotFound):
        async with make(mounts=[Mount(tmp_path / "missing", "/mnt/x", mode)]):
            pytest.fail("there was nothing to mount")


@pytest.mark.parametrize("mode", ["read", "write"])
async def test_the_hosts_root_cannot_be_mounted(make, mode: str) -> None:
    with pytest.raises(RequestError):
        async with make(mounts=[Mount("/", "/mnt/x", mode)]):
            pytest.fail("the whole host was inside")


async def test_a_copy_that_does_not_fit_stops_the_start(make, shared: Path) -> None:
    (shared / "big").write_bytes(bytes(4 << 20))
    with pytest.raises(Exhausted):
        async with make(mounts=[Mount(shared, "/workspace/x")], limits=Limits(disk="2MiB")):
            pytest.fail("it did not fit")
    async with make(mounts=[Mount(shared, "/workspace/x")], limits=Limits(disk="8MiB")) as sandbox:
        assert (await sandbox.files.stat("/workspace/x/big")).size == 4 << 20
