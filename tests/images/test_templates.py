"""Templates: steps are run once, every start is ready, and what is wrong is not kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cloister import Limits, Policy, Sandbox, Template
from cloister.errors import GuestError, NotFound, ProcessFailed, RequestError
from cloister.model import Mount

if TYPE_CHECKING:
    from tests.images.conftest import Yard

# A server of one line, without any module.
LISTEN = (
    'sleep 0.2; exec perl -e \'socket(S, 2, 1, 6); bind(S, pack("S n x12", 2, 8000)) or die; '
    "listen(S, 5); while (accept(C, S)) { close C }'"
)


async def test_steps_are_run_once_and_every_start_has_what_they_made(yard: Yard) -> None:
    await Template.build("web", image="base", steps=["echo made > /made", "cat /made > /again"])
    for _ in range(2):
        async with Sandbox(template="web") as sandbox:
            assert (await sandbox.run("cat /made /again; rm -f /made || true")).stdout == (
                "made\nmade\n"
            )


async def test_its_policy_is_that_of_its_sandboxes_and_can_be_changed_in_parts(yard: Yard) -> None:
    policy = Policy(limits=Limits(pids=44), hostname="web", env={"A": "1"})
    await Template.build("web", image="base", policy=policy)
    async with Sandbox(template="web") as sandbox:
        assert sandbox.policy.limits.pids == 44
        assert (await sandbox.run("echo $A; cat /proc/sys/kernel/hostname")).stdout == "1\nweb\n"
    async with Sandbox(template="web", limits=Limits(pids=55)) as sandbox:
        assert (sandbox.policy.limits.pids, sandbox.policy.hostname) == (55, "web")


async def test_each_build_is_a_version_and_older_ones_can_be_named(yard: Yard) -> None:
    await Template.build("web", image="base", steps=["echo 1 > /v"])
    second = await Template.build("web", image="base", steps=["echo 2 > /v"])
    assert second.reference == "web:2"
    for reference, version in (("web", "2\n"), ("web:1", "1\n"), ("web:2", "2\n")):
        async with Sandbox(template=reference) as sandbox:
            assert (await sandbox.run("cat /v")).stdout == version


async def test_the_program_runs_and_is_ready_before_anything_else(yard: Yard) -> None:
    await Template.build(
        "web",
        image="base",
        start="sleep 0.2; echo up > /tmp/up; while :; do sleep 1; done",
        ready="cat /tmp/up",
    )
    async with Sandbox(template="web") as sandbox:
        assert (await sandbox.run("cat /tmp/up")).stdout == "up\n"


async def test_what_the_program_says_never_holds_it_up(yard: Yard) -> None:
    await Template.build(
        "web",
        image="base",
        start="i=0; while [ $i -lt 3000 ]; do echo $i---------------------------------------------"
        "-----; i=$((i + 1)); done; echo up > /tmp/up; sleep 600",
        ready="cat /tmp/up",
        ready_timeout="30s",
    )
    async with Sandbox(template="web") as sandbox:
        assert await sandbox.files.exists("/tmp/up")


async def test_one_that_does_not_get_ready_is_not_kept(yard: Yard) -> None:
    with pytest.raises(GuestError, match=r"not ready within 0\.5 s; its program said last: so far"):
        await Template.build(
            "web", image="base", start="echo so far; sleep 600", ready="cat /no", ready_timeout=0.5
        )
    with pytest.raises(ProcessFailed, match="ended before it was ready, exit 3"):
        await Template.build("web", image="base", start="exit 3", ready_port=8000)
    with pytest.raises(NotFound):
        await Template.find("web")


async def test_a_step_that_fails_says_which(yard: Yard) -> None:
    with pytest.raises(ProcessFailed, match="step 2: RUN did not succeed, exit 5"):
        await Template.build("web", image="base", steps=["true", "exit 5"])


async def test_steps_are_done_without_the_templates_host_directories(
    yard: Yard, tmp_path: Path
) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "f").write_text("host")
    policy = Policy(mounts=[Mount(tmp_path / "host", "/mnt/host", "read")])
    await Template.build(
        "web", image="base", steps=["cat /mnt/host/f && exit 1; echo no > /seen"], policy=policy
    )
    async with Sandbox(template="web") as sandbox:
        assert (await sandbox.run("cat /seen /mnt/host/f")).stdout == "no\nhost"


async def test_a_file_describes_a_template_on_a_dockerfile(yard: Yard) -> None:
    (yard.context / "f").write_text("f")
    (yard.context / "Dockerfile").write_text("FROM base\nCOPY f /f\n")
    (yard.context / "t.toml").write_text(
        'name = "web"\ndockerfile = "Dockerfile"\nsteps = ["cat /f > /g"]\n'
        '[ready]\ncommand = "cat /g"'
    )
    made = await Template.load(yard.context / "t.toml")
    async with Sandbox(template=made.reference) as sandbox:
        assert (await sandbox.run("cat /g")).stdout == "f"


async def test_a_template_and_another_root_are_refused_together(yard: Yard) -> None:
    await Template.build("web", image="base")
    for settings in ({"image": "base"}, {"policy": Policy()}):
        with pytest.raises(RequestError, match="brings its policy and its image"):
            await Sandbox(template="web", **settings).open()


async def test_a_port_is_waited_for(yard: Yard) -> None:
    await Template.build("web", image="base", start=LISTEN, ready_port=8000)
    async with Sandbox(template="web") as sandbox:
        _, writer = await sandbox.dial(8000)
        writer.close()
