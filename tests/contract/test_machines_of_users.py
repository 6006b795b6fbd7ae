"""A machine stands for whoever has ids to give it, and nobody else is given a weaker one."""

from __future__ import annotations

import pytest

from cloister import Sandbox, Unsupported
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
