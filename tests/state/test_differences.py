"""Differences as a user asks for them: of a running sandbox, over snapshots, of every root."""

from __future__ import annotations

from pathlib import Path

from cloister import Mount, Sandbox
from cloister.policy import DirectoryRoot


async def told(sandbox: Sandbox, below: str = "/") -> list[str]:
    return [f"{each.kind.value} {each.path.decode()}" for each in await sandbox.diff(below)]


async def test_a_fresh_sandbox_has_changed_nothing(make) -> None:
    for profile in ("default", "root"):
        async with make(profile=profile) as sandbox:
            assert await told(sandbox) == []


async def test_what_mounts_are_put_on_is_no_change(make, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("of the host")
    places = {"one": "/mnt/a/b", "two": "/workspace/two"}
    mounts = [Mount(tmp_path / name, place, "read") for name, place in places.items()]
    async with make(mounts=mounts) as sandbox:
        assert (await sandbox.run("cat /mnt/a/b/file /workspace/two/file")).ok
        assert await told(sandbox) == []
        await sandbox.run("echo 1 > /workspace/mine")
        assert await told(sandbox) == ["added /workspace/mine"]


async def test_reading_and_copied_up_but_equal_files_are_no_changes(make, owned_programs) -> None:
    async with make(profile="root") as sandbox:
        (
            await sandbox.run(
                "cat /etc/passwd > /dev/null; touch -r /etc/hosts /etc/hosts", user="root"
            )
        )
        await sandbox.run("touch -c /usr/bin/env; : >> /etc/issue", user="root")
        assert await told(sandbox) == []


async def test_the_difference_is_the_same_however_many_snapshots_lie_between(make) -> None:
    commands = (
        "mkdir -p a/b; echo 1 > a/b/c; echo 1 > d; echo 1 > e",
        "rm a/b/c; echo 2 > d",
        "rm -r a; mkdir a; echo 3 > a/new; rm e",
        "echo 1 > e; rm -r a; echo 4 > a",
    )
    async with make() as one, make(history="each-run") as many:
        for command in commands:
            await one.run(command)
            await many.run(command)
            assert await told(one) == await told(many)
        assert await told(one, "/workspace") == [
            *("added /workspace/a", "added /workspace/d", "added /workspace/e"),
        ]
        await many.rewind(1)
        assert await told(many, "/workspace/a") == [
            *("added /workspace/a", "added /workspace/a/b", "added /workspace/a/b/c"),
        ]


async def test_a_roots_own_files_are_told_as_changed_and_deleted(
    make, owned_programs, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    base = tmp_path / "root"
    for name in ("keep", "change", "delete", "mode"):
        (base / "data").mkdir(parents=True, exist_ok=True)
        (base / "data" / name).write_text("as shipped")
        (base / "data" / name).chmod(0o666)
    (base / "data").chmod(0o777)
    async with make(root=DirectoryRoot(base)) as sandbox:
        await sandbox.files.write("/data/change", "other")
        await sandbox.files.write("/data/added", "new")
        await sandbox.files.remove("/data/delete")
        expected = ["added /data/added", "changed /data/change", "deleted /data/delete"]
        assert await told(sandbox, "/data") == expected
        taken = await sandbox.snapshot()
        assert await told(sandbox, "/data") == expected
        async with Sandbox.fork(taken) as [fork]:
            assert await told(fork, "/data") == expected
            await fork.files.write("/data/delete", "as shipped")
            assert "deleted /data/delete" not in await told(fork, "/data")
    assert (base / "data" / "delete").read_text() == "as shipped"


async def test_a_difference_is_streamed(make) -> None:
    async with make() as sandbox:
        await sandbox.run("mkdir many; cd many; seq 3000 | xargs touch")
        seen = []
        async for change in sandbox.diff("/workspace/many"):
            seen.append(change.path)
        assert len(seen) == 3001 and seen == sorted(seen)
