"""Dockerfiles that attack whoever builds them: each is held or refused, its honest twin is not."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cloister import Limits, Policy, Sandbox
from cloister.errors import (
    ImageRefused,
    NotFound,
    PolicyError,
    ProcessFailed,
    RequestError,
)
from cloister.model import Mount

if TYPE_CHECKING:
    from tests.images.conftest import Yard


async def test_a_step_ends_at_the_limits_of_the_policy(yard: Yard) -> None:
    policy = Policy(limits=Limits(wall=0.3, disk="unlimited"), storage="disk")
    with pytest.raises(ProcessFailed, match="wall time limit"):
        await yard.build("RUN sleep 60\n", policy=policy)
    await yard.build("RUN sleep 0\n", policy=policy)


async def test_what_a_step_leaves_running_ends_with_it(yard: Yard) -> None:
    await yard.build("RUN (while :; do echo x >> /grows; sleep 0.01; done) & sleep 0.1\n")
    before = await yard.look("stat -c %s /grows")
    assert int(before) > 0
    assert await yard.look("stat -c %s /grows") == before


async def test_a_step_reaches_nothing_that_listens_on_the_host(yard: Yard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        line = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached"
        # The same line, where it may: the listener is there, and the program can.
        here = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=10)
        assert here.stdout == "reached\n"
        listener.accept()[0].close()
        await yard.build(f"RUN bash -c '{line}' || echo refused\n")
        assert "refused" in yard.told.output and "reached" not in yard.told.output
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()


async def test_a_step_sees_nothing_of_the_host(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "canary").write_text("seen")
    monkeypatch.setenv("CANARY_OF_THE_HOST", "seen")
    await yard.build(
        f"RUN cat {tmp_path}/canary 2>/dev/null || echo no file; env; "
        "cat /proc/self/mountinfo; ls -la /\n"
    )
    assert "no file" in yard.told.output
    assert "seen" not in yard.told.output
    assert str(tmp_path) not in yard.told.output
    assert "/bin/cell" not in yard.told.output


async def test_a_build_is_given_no_host_directories(yard: Yard, tmp_path: Path) -> None:
    policy = Policy(mounts=[Mount(tmp_path, "/host", "read")])
    with pytest.raises(PolicyError, match="use COPY"):
        await yard.build("RUN ls /host\n", policy=policy)


async def test_a_directory_does_not_take_the_place_of_a_link(yard: Yard) -> None:
    (yard.context / "root" / "bin").mkdir(parents=True)
    (yard.context / "root" / "bin" / "x").write_text("x")
    with pytest.raises(RequestError, match=r'Dockerfile:2: "/bin" is no directory in the image'):
        await yard.build("COPY root /\n")
    await yard.build("COPY root /fresh\n")
    assert await yard.look("cat /fresh/bin/x") == "x"


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([("../../escape", {"content": b"x"})], r"\.\."),
        ([("way", {"type": b"2", "link": "/etc"}), ("way/evil", {"content": b"x"})], "way"),
    ],
)
async def test_archives_that_climb_are_refused(
    yard: Yard, tar: Callable[..., bytes], entries: list[Any], words: str
) -> None:
    (yard.context / "a.tar").write_bytes(tar(*entries))
    with pytest.raises(ImageRefused, match=f"Dockerfile:2: it cannot be unpacked: .*{words}"):
        await yard.build("ADD a.tar /x/\n")
    (yard.context / "a.tar").write_bytes(tar(("way/good", {"content": b"x"})))
    await yard.build("ADD a.tar /x/\n")


@pytest.mark.parametrize("path", ["../secret", "../../../../../etc/shadow", "out", "d/up/secret"])
async def test_nothing_outside_the_context_is_copied(yard: Yard, tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("not yours")
    (yard.context / "out").symlink_to("../secret")
    (yard.context / "d").mkdir()
    (yard.context / "d" / "up").symlink_to("../..")
    (yard.context / "inside").write_text("yours")
    (yard.context / "d" / "back").symlink_to("../inside")
    with pytest.raises(RequestError, match=r"Dockerfile:2: .*leads out of the context"):
        await yard.build(f"COPY {path} /taken\n")
    await yard.build("COPY d/back /taken\n")
    assert await yard.look("cat /taken") == "yours"


async def test_a_working_directory_that_climbs_stays_inside(yard: Yard) -> None:
    image = await yard.build("WORKDIR ../../../../tmp/../here\nRUN echo in > f\n")
    assert image.config["workdir"] == "/here"
    assert await yard.look("cat /here/f") == "in\n"


@pytest.mark.parametrize("path", ["/proc/self/fd/7", "/proc/1/root", "/proc"])
async def test_a_working_directory_of_descriptors_is_refused(yard: Yard, path: str) -> None:
    with pytest.raises(ImageRefused, match=r"Dockerfile:2: .*must not be in /proc"):
        await yard.build(f"WORKDIR {path}\n")


@pytest.mark.parametrize("user", ["99999999", "65536", "4294967295", "-1", "stranger", "app:none"])
async def test_a_user_that_is_none_is_refused(yard: Yard, user: str) -> None:
    with pytest.raises(ImageRefused, match="Dockerfile:2: the image's"):
        await yard.build(f"USER {user}\nRUN id\n")


async def test_variables_of_an_image_act_on_its_own_programs_alone(
    yard: Yard,
) -> None:
    (yard.context / "f").write_text("f")
    await yard.build(
        "ENV LD_PRELOAD=/evil.so PATH=/nowhere BASH_ENV=/evil\n"
        "COPY f /evil.so\n"
        "COPY f /f\n"
        'RUN ["/bin/cat", "/f"]\n'
    )
    # The loader of the image complains inside; what we run there has none.
    assert "f" in yard.told.output and "/evil.so" in yard.told.output
    async with Sandbox(image="it", profile="root") as sandbox:
        assert await sandbox.files.read_text("/f") == "f"


async def test_an_image_that_is_not_here_is_not_fetched(yard: Yard) -> None:
    with pytest.raises(NotFound, match="Dockerfile:1: no image"):
        await yard.build("FROM elsewhere:1\n", on_base=False)


async def test_what_a_step_is_shown_does_not_become_part_of_the_image(yard: Yard) -> None:
    policy = Policy(
        egress=["example.invalid"], storage="disk", limits=Limits(disk="unlimited", wall="60s")
    )
    (yard.context / "f").write_text("f")
    image = await yard.build("RUN cat /etc/resolv.conf\nCOPY f /f\nRUN cat /f\n", policy=policy)
    assert "nameserver" in yard.told.output
    # Two steps only looked: the base, and the copy.
    assert len(image.stored.layers) == 2
    async with Sandbox(image="it") as sandbox:
        assert not await sandbox.files.exists("/etc/resolv.conf")
        assert not await sandbox.files.exists("/.cell")
