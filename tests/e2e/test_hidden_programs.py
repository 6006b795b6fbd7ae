"""A sandbox's own root does not see what of the host's programs only the host's root may see."""

from __future__ import annotations

import os

import pytest

from cloister import Sandbox
from cloister.runtime.gvisor.program import candidates
from cloister.runtime.namespace.ids import find_sub_ids

HAS_GVISOR = bool(candidates()) and (os.geteuid() == 0 or find_sub_ids() is not None)
WALLS = ("namespace", *(("gvisor",) if HAS_GVISOR else ()))
FILE, TWIN, DIRECTORY = "/usr/bin/env", "/usr/bin/id", "/usr/share/misc"


@pytest.mark.parametrize("wall", WALLS)
async def test_what_is_covered_is_neither_read_nor_moved_nor_removed_by_root(
    wall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    covered = (FILE[1:], DIRECTORY[1:])
    monkeypatch.setattr("cloister.runtime.namespace.planning.hidden_programs", lambda _: covered)
    async with Sandbox(profile="root", runtime=wall) as sandbox:
        tries = (f"cat {FILE}", f"mv {FILE} /tmp/x", f"rm -f {FILE}", f"ln {FILE} /usr/bin/x")
        for command in tries:
            assert not (await sandbox.run(command)).ok, command
        listed = await sandbox.run(["sh", "-c", f"echo {DIRECTORY}/*"])
        assert listed.stdout == f"{DIRECTORY}/*\n"
        assert not (await sandbox.run(f"rmdir {DIRECTORY}")).ok
        # The twin beside it is there.
        assert (await sandbox.run(f"{TWIN} -u && head -c 4 {TWIN} > /tmp/head")).ok


async def test_root_inside_opens_nothing_of_this_host_that_only_its_root_may() -> None:
    files = r"find /usr -xdev -type f ! -perm /o+rx -exec test -r {} \; -print"
    directories = r"find /usr -xdev -type d ! -perm -o+x -exec test -x {} \; -print"
    async with Sandbox(profile="root") as sandbox:
        for command in (files, directories):
            assert (await sandbox.run(["sh", "-c", command])).stdout == ""
