"""What a machine changed is shown, written and applied as that of any other wall, exactly."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloister import Limits, Sandbox
from cloister.errors import GuestError
from cloister.model.changes import Change
from cloister.policy import DirectoryRoot
from cloister.store import Store

from ..contract.machine_root import PLACE, has_machines, machine_root
from .test_kept_machines import LIMITS, MAKE

pytestmark = pytest.mark.skipif(
    not has_machines(), reason="machines need root, QEMU and the kernel that make setup unpacks"
)
Make = Callable[..., Sandbox]
_LATER = "echo two >> d/one; rm d/large; echo n > .wh.d; rm -r d/e; mkdir d/e; touch d/e/again"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_MICROVM", str(PLACE))


def _machine(**settings: Any) -> Sandbox:
    root = DirectoryRoot(str(machine_root()))
    return Sandbox(root=root, trust="hostile", limits=LIMITS, profile="root", **settings)


async def test_the_same_deeds_are_the_same_changes_in_a_machine_and_behind_another_wall(
    make: Make, limits: Callable[..., Limits], store: Store
) -> None:
    seen = []
    plain = {"root": DirectoryRoot(str(machine_root())), "limits": limits(), "storage": "disk"}
    for sandbox in (make(profile="root", **plain), _machine(storage="disk")):
        async with sandbox:
            # One that goes on writing is held still for a moment, and goes on.
            await sandbox.start(["sh", "-c", "while :; do echo > /tmp/now; done"])
            (await sandbox.run(MAKE)).check()
            whole = await sandbox.diff()
            await sandbox.snapshot("first")
            (await sandbox.run(_LATER)).check()
            since = await sandbox.diff("/workspace", since="first")
            seen.append((_told(whole), _told(since)))
            assert (await sandbox.run("cat d/one")).stdout.endswith("two\n")
        assert store.disks.list() == []
    assert seen[0] == seen[1]
    assert len(seen[1][0]) > 10 and len(seen[1][1]) > 5


def _told(changes: tuple[Change, ...]) -> list[Change]:
    return [each for each in changes if not each.path.startswith(b"/tmp")]


async def test_what_is_kept_in_a_machine_is_shown_exported_and_applied_while_nobody_runs_it(
    store: Store, tmp_path: Path
) -> None:
    host = tmp_path / "host"
    host.mkdir()
    (host / "a").write_text("of the host\n")
    async with _machine(keep="task") as sandbox:
        (await sandbox.run("mkdir d; echo one > d/b; head -c 100000 /dev/zero > d/c")).check()
        await sandbox.snapshot("first")
        (await sandbox.run("echo two > d/b; ln -s /etc/passwd d/out")).check()
        # Another process asks the one that runs it.
        assert await _cloister("diff", "task", "/workspace/d/b") == "A /workspace/d/b\n"
    written = str(tmp_path / "out.tar")
    since = ("--since", "first", "--below", "/workspace")
    await _cloister("export", "task", "--as", "tar", *since, "-o", written)
    with tarfile.open(written) as archive:
        assert {each.name.strip("/") for each in archive} == {"d", "d/b", "d/out"}
        content = archive.extractfile("d/b")
        assert content is not None and content.read() == b"two\n"
    await _cloister("apply", "task", str(host), "--yes", "--skip-refused")
    assert (host / "d" / "b").read_text() == "two\n" and (host / "a").exists()
    assert not (host / "d" / "out").exists()
    assert [disk.id for disk in store.disks.list()] == [store.kept.find("task").disk]


async def _cloister(*words: str) -> str:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "cloister", *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_what_cannot_be_brought_out_is_an_error_and_leaves_nothing(store: Store) -> None:
    deep = "python3 -c \"import os\nfor _ in range(300): os.mkdir('d'); os.chdir('d')\""
    async with _machine(storage="disk") as sandbox:
        before = store.disks.list()
        assert await sandbox.diff("/workspace") == ()
        (await sandbox.run(deep)).check()
        with pytest.raises(GuestError, match="deeper than"):
            await sandbox.diff()
        # The sandbox itself is none the worse for it.
        assert (await sandbox.run(["test", "-d", "d/d"])).ok
        assert len(store.disks.list()) == len(before) + 1
    assert store.disks.list() == []
