"""A kept sandbox is moved behind another wall with its disk, never to a weaker one unasked."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from cloister import Sandbox
from cloister.errors import RequestError, Unsupported
from cloister.ledger import Promoted
from cloister.ledger.reading import read_entries
from cloister.model import Trust
from cloister.runtime.gvisor import runtime as gvisor_runtime
from cloister.sandbox.promote import promote
from cloister.store import Store

from .on_gvisor import needs_gvisor

Make = Callable[..., Sandbox]

pytestmark = needs_gvisor


async def test_a_kept_sandbox_goes_behind_a_stronger_wall_with_all_it_had(
    make: Make, store: Store
) -> None:
    async with make(keep="task") as sandbox:
        await sandbox.run("echo mine > /workspace/file; chmod 640 /workspace/file")
        assert sandbox.guest.runtime == "namespace"
    moved = await promote("task", Trust.UNTRUSTED)
    assert (moved.trust_before, moved.trust, moved.wall) == (
        Trust.INTERNAL,
        Trust.UNTRUSTED,
        "gvisor",
    )
    async with Sandbox(keep="task") as sandbox:
        assert sandbox.guest.runtime == "gvisor"
        assert (await sandbox.run(["cat", "/workspace/file"])).stdout == "mine\n"
    told = [each.payload for each in read_entries(store.directory, "task")]
    assert Promoted("internal", "untrusted", "gvisor") in told
    with pytest.raises(RequestError, match="--weaker"):
        await promote("task", Trust.INTERNAL)
    assert json.loads(store.kept.find("task").policy)["trust"] == "untrusted"
    await promote("task", Trust.INTERNAL, weaker=True)
    async with Sandbox(keep="task") as sandbox:
        assert sandbox.guest.runtime == "namespace"
        assert (await sandbox.run(["cat", "/workspace/file"])).stdout == "mine\n"


async def test_a_wall_that_cannot_be_built_changes_nothing(
    make: Make, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make(keep="task"):
        pass
    with monkeypatch.context() as patch:
        patch.setenv("CLOISTER_RUNTIMES", "untrusted=gvisor")
        patch.setattr(gvisor_runtime, "candidates", lambda: ())
        with pytest.raises(Unsupported, match="runsc is not installed"):
            await promote("task", Trust.UNTRUSTED)
    assert json.loads(store.kept.find("task").policy).get("trust", "internal") == "internal"
    async with Sandbox(keep="task") as sandbox:
        assert sandbox.guest.runtime == "namespace"
