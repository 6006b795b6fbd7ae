"""What a sandbox has as its root: the host's programs and nothing else, or any directory."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from cloister import DirectoryRoot, HostRoot, LaunchFailed, NotFound, RequestError, Sandbox
from cloister.runtime.namespace.runtime import cell_binary


async def test_nothing_of_the_hosts_people_is_there(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "canary").write_text("canary")
    assert not await sandbox.files.exists(tmp_path / "canary")
    listed = await sandbox.run("ls -A / /home /root /var /run /etc 2>/dev/null")
    words = listed.stdout.split()
    assert "user" in words and "passwd" in words
    for name in ("gshadow", "ssh", "machine-id", "docker.sock", "crontab", "sudoers"):
        assert name not in words
    accounts = await sandbox.files.read_text("/etc/passwd")
    assert {line.partition(":")[0] for line in accounts.splitlines()} == {
        "root",
        "user",
        "_apt",
        "nobody",
    }


async def test_the_hosts_programs_work(sandbox: Sandbox) -> None:
    result = await sandbox.run(
        "python3 -c 'import ssl, sqlite3; print(1 + 1)' && ls /usr/bin | wc -l"
    )
    two, programs = result.check().stdout.split()
    assert two == "2"
    assert int(programs) == len(os.listdir("/usr/bin"))


async def test_extra_host_directories_are_shown_when_named(make, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("tool\n")
    tmp_path.chmod(0o755)
    async with make(root=HostRoot(extra=[str(tmp_path)])) as sandbox:
        assert await sandbox.files.read_text(tmp_path / "tool") == "tool\n"
    assert (tmp_path / "tool").read_text() == "tool\n"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A directory that can be a root: one static program and a file."""
    root = tmp_path / "image"
    (root / "bin").mkdir(parents=True)
    shutil.copy(cell_binary(), root / "bin" / "program")
    (root / "bin" / "program").chmod(0o755)
    (root / "file").write_text("image\n")
    return root


async def test_any_directory_can_be_the_root(make, image: Path) -> None:
    async with make(root=DirectoryRoot(image)) as sandbox:
        result = await sandbox.run(["/bin/program", "steps"])
        assert "\nposture\t" in result.check().stdout
        assert await sandbox.files.read_text("/file") == "image\n"
        with pytest.raises(NotFound):
            await sandbox.run(["/bin/sh"])
        await sandbox.files.write("/workspace/new", "x")
    assert sorted(path.name for path in image.iterdir()) == ["bin", "file"]


async def test_two_sandboxes_on_one_root_do_not_meet(make, image: Path) -> None:
    async with make(root=DirectoryRoot(image)) as one, make(root=DirectoryRoot(image)) as two:
        await one.files.write("/workspace/file", "one")
        await two.files.write("/workspace/file", "two")
        assert await one.files.read("/workspace/file") == b"one"
        assert await two.files.read("/workspace/file") == b"two"


async def test_links_in_a_root_lead_nowhere_but_into_it(
    make, image: Path, tmp_path: Path, owned_programs: None
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    # Out of the image this leads to a directory of the host; from inside, to one of the image.
    (image / "var").symlink_to(elsewhere)
    inside = image / str(elsewhere).lstrip("/")
    inside.mkdir(parents=True)
    async with make(root=DirectoryRoot(image)) as sandbox:
        assert (await sandbox.run(["/bin/program", "steps"])).ok
        names = [entry.name for entry in await sandbox.files.list("/var/")]
        assert "tmp" in names
    assert list(elsewhere.iterdir()) == list(inside.iterdir()) == []


async def test_a_link_in_a_root_that_leads_nowhere_stops_the_start(make, image: Path) -> None:
    (image / "var").symlink_to("/missing")
    with pytest.raises(LaunchFailed) as raised:
        await make(root=DirectoryRoot(image)).open()
    assert raised.value.step == "root"


async def test_a_root_that_is_no_directory_stops_the_start(make, image: Path) -> None:
    with pytest.raises(NotFound):
        await make(root=DirectoryRoot(image / "missing")).open()
    with pytest.raises(RequestError):
        await make(root=DirectoryRoot(image / "file")).open()
    async with make(root=DirectoryRoot(image)) as sandbox:
        assert sandbox.is_running


async def test_what_is_shown_from_below_tmp_leaves_tmp_to_everybody(make) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o755)
        (Path(place) / "file").write_text("shown")
        async with make(root=HostRoot(extra=[place])) as sandbox:
            found = await sandbox.run(f"echo mine > /tmp/own && cat /tmp/own {place}/file")
            assert found.stdout == "mine\nshown", found.stderr
            assert not (await sandbox.run(f"echo x > {place}/file")).ok
