"""Dockerfiles are built inside sandboxes: what they say happens there, and nothing else does."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloister import Image, Limits, Policy, Sandbox
from cloister.build.progress import BuildProgress, News
from cloister.errors import (
    ImageRefused,
    NotFound,
    PolicyError,
    ProcessFailed,
    RequestError,
)
from cloister.model import Mount

sys.path.insert(0, str(Path(__file__).parent))
from rootfs import write_rootfs

Build = Callable[..., Any]


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tar of a small root filesystem."""
    path = tmp_path_factory.mktemp("rootfs") / "rootfs.tar"
    write_rootfs(path)
    return path


class Told(list[BuildProgress]):
    """What a build told."""

    def done(self) -> list[int]:
        return [each.index for each in self if each.news is News.DONE]

    def cached(self) -> list[int]:
        return [each.index for each in self if each.news is News.CACHED]

    @property
    def output(self) -> str:
        return b"".join(each.output for each in self).decode()

    @property
    def notes(self) -> list[str]:
        return [each.text for each in self if each.news is News.NOTE]


class Yard:
    """A context, and builds of it on the small root filesystem."""

    def __init__(self, context: Path) -> None:
        self.context = context
        self.told = Told()

    async def build(self, text: str, *, on_base: bool = True, **options: Any) -> Image:
        self.told = Told()
        before = "FROM base\n" if on_base else ""
        (self.context / "Dockerfile").write_text(before + text)
        return await Image.build(self.context, "it", on_progress=self.told.append, **options)

    async def look(self, line: str, *, image: str = "it", **settings: Any) -> str:
        async with Sandbox(image=image, **settings) as sandbox:
            return (await sandbox.run(line, cwd="/")).check().stdout


@pytest.fixture
async def yard(tmp_path: Path, rootfs: Path, monkeypatch: pytest.MonkeyPatch) -> Yard:
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path / "state"))
    await Image.import_(f"tar:{rootfs}", name="base")
    context = tmp_path / "context"
    context.mkdir()
    return Yard(context)


async def test_steps_make_an_image_with_what_they_did_and_said(yard: Yard) -> None:
    (yard.context / "hello.txt").write_text("hello")
    image = await yard.build(
        "ARG WHO=nobody\n"
        "ENV GREETING='good day' EMPTY=\n"
        "WORKDIR /app\n"
        "WORKDIR src\n"
        "COPY hello.txt .\n"
        'RUN echo "$GREETING $WHO" > said && cat hello.txt\n'
        "RUN rm /usr/bin/touch\n"
        "USER app\n"
        'ENTRYPOINT ["/bin/cat"]\n'
        'CMD ["said"]\n',
        arguments={"WHO": "world"},
    )
    assert yard.told.output == "hello"
    assert image.config["env"] == {"GREETING": "good day", "EMPTY": ""}
    assert (image.config["workdir"], image.config["user"]) == ("/app/src", "1001:1002")
    async with Sandbox(image="it") as sandbox:
        result = await sandbox.run([*image.stored.entrypoint, *image.stored.cmd])
        assert result.stdout == "good day world\n"
        assert (await sandbox.run("id -u; id -g; pwd")).stdout == "1001\n1002\n/app/src\n"
        assert not await sandbox.files.exists("/usr/bin/touch")
        assert not await sandbox.files.exists("/.cell")


async def test_a_step_that_was_done_is_not_done_again(yard: Yard) -> None:
    file = yard.context / "f"
    file.write_text("one")
    text = "RUN echo 1 > /a\nCOPY f /f\nRUN echo 2 > /b\n"
    first = await yard.build(text)
    assert yard.told.done() == [2, 3, 4]
    os.utime(file, (1, 1))
    again = await yard.build(text)
    assert (yard.told.done(), again.digest) == ([], first.digest)
    file.write_text("two")
    other = await yard.build(text)
    assert (yard.told.cached(), yard.told.done()) == ([2], [3, 4])
    assert other.digest != first.digest
    assert await yard.look("cat /f") == "two"


async def test_without_the_cache_every_step_is_done(yard: Yard) -> None:
    await yard.build("RUN echo 1 > /a\n")
    await yard.build("RUN echo 1 > /a\n", use_cache=False)
    assert yard.told.done() == [2]


async def test_the_policy_of_the_steps_is_part_of_what_was_done(yard: Yard) -> None:
    await yard.build("RUN echo 1 > /a\n")
    policy = Policy(limits=Limits(pids=99, disk="unlimited"), storage="disk")
    await yard.build("RUN echo 1 > /a\n", policy=policy)
    assert yard.told.done() == [2]


async def test_a_step_that_fails_says_where_and_shows_its_end(yard: Yard) -> None:
    with pytest.raises(ProcessFailed) as caught:
        await yard.build("RUN true\nRUN echo one; echo gone wrong >&2; exit 3\n")
    message = str(caught.value)
    assert message.startswith("Dockerfile:3: RUN did not succeed, exit 3")
    assert "gone wrong" in message
    assert caught.value.result.exit_code == 3
    with pytest.raises(NotFound):
        await Image.find("it")


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


async def test_copies_go_where_they_are_sent(yard: Yard) -> None:
    (yard.context / "d" / "sub").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "d/c", "d/sub/e"):
        (yard.context / name).write_text(name)
    (yard.context / "d" / "link").symlink_to("/etc/passwd")
    (yard.context / "a.txt").chmod(0o600)
    await yard.build(
        "COPY a.txt /one\n"
        "COPY a.txt /dir/\n"
        "COPY *.txt /many/\n"
        "COPY d /tree\n"
        "COPY d/ /tree/again/\n"
        "COPY a.txt /etc\n"
        "COPY --chown=app --chmod=751 a.txt b.txt /owned/\n"
        "COPY --chown=5:6 d /owned/d\n"
        "COPY <<one <<'two' /documents/\n$HOME ${NO:-x}\none\n$HOME\ntwo\n"
    )
    found = await yard.look(
        "cat /one /dir/a.txt /many/a.txt /many/b.txt /tree/c /tree/sub/e /tree/again/c /etc/a.txt;"
        "stat -c '%n %a %u %g' /one /owned/* /owned/d/c /etc /tree /owned; stat -c %N /tree/link;"
        "cat /documents/*",
        profile="root",
    )
    assert found == (
        "a.txta.txta.txtb.txtd/cd/sub/ed/ca.txt"
        "/one 600 0 0\n"
        "/owned/a.txt 751 1001 1002\n"
        "/owned/b.txt 751 1001 1002\n"
        "/owned/d 755 5 6\n"
        "/owned/d/c 644 5 6\n"
        "/etc 755 0 0\n"
        "/tree 755 0 0\n"
        "/owned 755 1001 1002\n"
        "'/tree/link' -> '/etc/passwd'\n"
        " x\n$HOME\n"
    )


async def test_a_copy_into_a_directory_behind_a_link_leaves_the_link(yard: Yard) -> None:
    (yard.context / "tool").write_text("#!/bin/sh\necho tool\n")
    (yard.context / "tool").chmod(0o755)
    await yard.build("COPY tool /bin/\nCOPY tool /bin/other\n")
    assert await yard.look("stat -c %F /bin; tool; /usr/bin/other") == "symbolic link\ntool\ntool\n"


async def test_a_directory_does_not_take_the_place_of_a_link(yard: Yard) -> None:
    (yard.context / "root" / "bin").mkdir(parents=True)
    (yard.context / "root" / "bin" / "x").write_text("x")
    with pytest.raises(RequestError, match=r'Dockerfile:2: "/bin" is no directory in the image'):
        await yard.build("COPY root /\n")
    await yard.build("COPY root /fresh\n")
    assert await yard.look("cat /fresh/bin/x") == "x"


async def test_a_copied_directory_leaves_those_that_are_there_as_they_are(yard: Yard) -> None:
    (yard.context / "d" / "in").mkdir(parents=True)
    (yard.context / "d" / "in").chmod(0o777)
    (yard.context / "d" / "in" / "f").write_text("f")
    (yard.context / "d" / "new").mkdir(mode=0o710)
    await yard.build("RUN mkdir -m 705 -p /t && mkdir -m 711 /t/in\nCOPY d /t\n")
    found = await yard.look("stat -c '%n %a' /t /t/in /t/new; cat /t/in/f", profile="root")
    assert found == "/t 705\n/t/in 711\n/t/new 710\nf"


async def test_ignored_files_stay_behind(yard: Yard) -> None:
    (yard.context / ".dockerignore").write_text("*.key\n.git\n!public.key\n")
    (yard.context / ".git").mkdir()
    (yard.context / ".git" / "config").write_text("x")
    for name in ("private.key", "public.key", "code"):
        (yard.context / name).write_text(name)
    await yard.build("COPY . /all\n")
    assert await yard.look("ls -A /all") == ".dockerignore\nDockerfile\ncode\npublic.key\n"
    with pytest.raises(NotFound, match="dockerignore leaves it out"):
        await yard.build("COPY private.key /\n")


async def test_stages_give_files_to_each_other(yard: Yard) -> None:
    await yard.build(
        "FROM base AS made\n"
        "RUN mkdir /out && echo built > /out/file && ln -s file /out/link && mkdir /out/d\n"
        "FROM base AS unneeded\n"
        "RUN exit 1\n"
        "FROM scratch\n"
        "COPY --from=made /out/ /x/\n"
        "COPY --from=0 /out/f* /y\n"
        "COPY --from=base --chown=7 /etc/passwd /z/\n",
        on_base=False,
    )
    async with Sandbox(image="it") as sandbox:
        assert await sandbox.files.read_text("/x/file") == "built\n"
        assert await sandbox.files.read_text("/y") == "built\n"
        assert (await sandbox.files.stat("/x/link", follow=False)).target == "file"
        assert (await sandbox.files.stat("/z/passwd")).uid == 7
        assert not await sandbox.files.exists("/bin")


async def test_a_stage_can_be_what_is_wanted(yard: Yard) -> None:
    text = "FROM base AS one\nRUN echo 1 > /a\nFROM one AS two\nRUN exit 1\n"
    await yard.build(text, on_base=False, target="one")
    assert await yard.look("cat /a") == "1\n"
    with pytest.raises(NotFound, match='did you mean "two"'):
        await yard.build(text, on_base=False, target="twoo")


@pytest.mark.parametrize("pack", ["", "gz", "bz2", "xz"])
async def test_archives_are_taken_apart_by_add_and_not_by_copy(
    yard: Yard, tar: Callable[..., bytes], pack: str
) -> None:
    import bz2
    import gzip
    import lzma

    data = tar(("d/f", {"content": b"inside", "owner": 7}))
    pressed = {"": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[pack](data)
    (yard.context / "a.tar").write_bytes(pressed)
    await yard.build("ADD a.tar /added/\nCOPY a.tar /copied/\nADD Dockerfile /plain\n")
    found = await yard.look("cat /added/d/f; stat -c %u /added/d/f; stat -c %s /copied/a.tar")
    assert found == f"inside7\n{len(pressed)}\n"


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


@pytest.mark.parametrize(
    ("user", "ids"), [("app", "1001:1002"), ("7", "7:0"), ("7:app", "7:1002"), ("0:0", "0:0")]
)
async def test_a_user_of_the_image_is_taken(yard: Yard, user: str, ids: str) -> None:
    image = await yard.build(f"USER {user}\nRUN echo $(id -u):$(id -g)\n")
    assert (yard.told.output, image.config["user"]) == (f"{ids}\n", ids)


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


async def test_a_program_that_is_not_there_is_said(yard: Yard) -> None:
    with pytest.raises(RequestError, match="Dockerfile:2: /bin/sh is not in the image"):
        await yard.build("FROM scratch\nRUN x\n", on_base=False)


async def test_an_image_that_is_not_here_is_not_fetched(yard: Yard) -> None:
    with pytest.raises(NotFound, match="Dockerfile:1: no image"):
        await yard.build("FROM elsewhere:1\n", on_base=False)


async def test_what_is_ignored_is_said(yard: Yard) -> None:
    await yard.build("VOLUME /data\nEXPOSE 80\n")
    assert [note.partition(" ")[0] for note in yard.told.notes] == ["VOLUME", "EXPOSE"]


async def test_an_argument_that_no_line_declares_is_an_error(yard: Yard) -> None:
    with pytest.raises(RequestError, match='did you mean "VERSION"'):
        await yard.build("ARG VERSION\nRUN true\n", arguments={"VERISON": "1"})


async def test_two_builds_at_once_give_one_image(yard: Yard) -> None:
    (yard.context / "Dockerfile").write_text("FROM base\nRUN echo 1 > /a\nRUN echo 2 > /b\n")
    builds = [Image.build(yard.context, f"it{number}") for number in range(3)]
    images = await asyncio.gather(*builds)
    assert len(images) == 3
    for number in range(3):
        assert await yard.look("cat /a /b", image=f"it{number}") == "1\n2\n"


async def test_a_cancelled_build_leaves_nothing_behind(yard: Yard, tmp_path: Path) -> None:
    (yard.context / "Dockerfile").write_text("FROM base\nRUN echo begun; sleep 600\n")
    begun = asyncio.Event()

    def watch(progress: BuildProgress) -> None:
        if progress.output:
            begun.set()

    building = asyncio.create_task(Image.build(yard.context, "it", on_progress=watch))
    await begun.wait()
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    state = tmp_path / "state"
    assert not list((state / "builds").glob("spool-*"))
    assert not [path for path in state.rglob("disks/*")]
