"""A machine stands for whoever has ids to give it, and nobody else is given a weaker one."""

from __future__ import annotations

import pytest

from cloister import Sandbox, Unsupported, Volume
from cloister.errors import Busy
from cloister.policy import Policy
from cloister.runtime.microvm.smallest import COMMAND, smallest_policy
from cloister.runtime.namespace.ids import find_sub_ids


def smallest() -> Policy:
    return smallest_policy(Policy(runtime="microvm"))


async def test_an_ordinary_users_machine_stands_is_saved_and_forked_or_is_refused_by_its_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLOISTER_MICROVM_ACCEL", "tcg")
    if find_sub_ids() is None:
        with pytest.raises(Unsupported, match="/etc/subuid"):
            await Sandbox(smallest()).open()
        return
    async with Sandbox(smallest(), storage="disk") as sandbox:
        assert sandbox.posture.facts["wall"] == "microvm"
        assert (await sandbox.run(COMMAND)).ok
        await sandbox.files.write("/workspace/said", "by it\n")
        (change,) = await sandbox.diff("/workspace")
        assert (change.path, change.size, change.uid) == (b"/workspace/said", 6, change.gid)
        taken = await sandbox.snapshot("running", memory=True)
        async with Sandbox.fork(taken.id, count=1) as (child,):
            assert (await child.run(COMMAND)).ok
            assert f"sandbox={child.id}" in await child.files.read_text("/dev/cloister/renewal")


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_a_volume_goes_into_an_ordinary_users_machine_and_out_of_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLOISTER_MICROVM_ACCEL", "tcg")
    await Volume.create("of-users", "unlimited")
    try:
        if find_sub_ids() is None:
            with pytest.raises(Unsupported, match="/etc/subuid"):
                await Sandbox(smallest(), volumes=["of-users:/mnt/v"]).open()
            return
        async with Sandbox(smallest(), volumes=["of-users:/mnt/v"]) as machine:
            await machine.files.write("/mnt/v/said", "in the machine\n")
            with pytest.raises(Busy, match="is written to by the machine of process"):
                await Sandbox(smallest(), volumes=["of-users:/mnt/v"]).open()
        assert (await Volume.find("of-users")).kind == "disk"
        async with Sandbox(smallest(), volumes=["of-users:/mnt/v:read"]) as machine:
            assert await machine.files.read_text("/mnt/v/said") == "in the machine\n"
        assert (await Volume.move("of-users", "directory")).kind == "directory"
        async with Sandbox(volumes=["of-users:/mnt/v"]) as sandbox:
            looked = await sandbox.run("cat /mnt/v/said; echo more >> /mnt/v/said; ls -n /mnt/v")
            assert looked.check().stdout.startswith("in the machine\n"), looked
        # The files are those of ids of this host by now, which only root reads for a machine.
        with pytest.raises(Unsupported, match="by root only"):
            await Sandbox(smallest(), volumes=["of-users:/mnt/v"]).open()
    finally:
        await Volume.remove("of-users")
