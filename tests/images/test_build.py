"""Dockerfiles are built inside sandboxes: what they say happens there, and nothing else does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cloister import Image, Limits, Policy, Sandbox
from cloister.build import steps
from cloister.build.progress import BuildProgress
from cloister.errors import (
    NotFound,
    ProcessFailed,
    RequestError,
)
from cloister.image.manifest import machine_platform

if TYPE_CHECKING:
    from tests.images.conftest import Yard


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
    assert (image.config["workdir"], image.config["user"]) == ("/app/src", "101:102")
    async with Sandbox(image="it") as sandbox:
        result = await sandbox.run([*image.stored.entrypoint, *image.stored.cmd])
        assert result.stdout == "good day world\n"
        assert (await sandbox.run("id -u; id -g; pwd")).stdout == "101\n102\n/app/src\n"
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
        "COPY --chmod=751 a.txt b.txt /moded/\n"
        "COPY <<one <<'two' /documents/\n$HOME ${NO:-x}\none\n$HOME\ntwo\n"
    )
    found = await yard.look(
        "cat /one /dir/a.txt /many/a.txt /many/b.txt /tree/c /tree/sub/e /tree/again/c /etc/a.txt;"
        "stat -c '%n %a' /one /moded/* /etc /tree /moded; stat -c %N /tree/link;"
        "cat /documents/*",
        profile="root",
    )
    assert found == (
        "a.txta.txta.txtb.txtd/cd/sub/ed/ca.txt"
        "/one 600\n"
        "/moded/a.txt 751\n"
        "/moded/b.txt 751\n"
        "/etc 755\n"
        "/tree 755\n"
        "/moded 755\n"
        "'/tree/link' -> '/etc/passwd'\n"
        " x\n$HOME\n"
    )


async def test_what_is_copied_has_the_owner_that_is_asked_for(
    yard: Yard, several_ids: None, tar: Callable[..., bytes]
) -> None:
    (yard.context / "d").mkdir()
    (yard.context / "d" / "f").write_text("f")
    (yard.context / "a.tar").write_bytes(tar(("t", {"content": b"t", "owner": 7})))
    await yard.build(
        "COPY d /plain\n"
        "COPY --chown=app d /named/d\n"
        "COPY --chown=5:6 d /numbers\n"
        "COPY --chown=9 --from=base /etc/passwd /from/\n"
        "ADD a.tar /added/\n"
    )
    paths = "/plain/f /named /named/d/f /numbers/f /from/passwd /added/t"
    assert await yard.look(f"stat -c '%n %u %g' {paths}") == (
        "/plain/f 0 0\n/named 101 102\n/named/d/f 101 102\n/numbers/f 5 6\n"
        "/from/passwd 9 9\n/added/t 7 7\n"
    )


async def test_a_copy_into_a_directory_behind_a_link_leaves_the_link(yard: Yard) -> None:
    (yard.context / "tool").write_text("#!/bin/sh\necho tool\n")
    (yard.context / "tool").chmod(0o755)
    await yard.build("COPY tool /bin/\nCOPY tool /bin/other\n")
    assert await yard.look("stat -c %F /bin; tool; /usr/bin/other") == "symbolic link\ntool\ntool\n"


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
        "COPY --from=base /etc/passwd /z/\n",
        on_base=False,
    )
    async with Sandbox(image="it") as sandbox:
        assert await sandbox.files.read_text("/x/file") == "built\n"
        assert await sandbox.files.read_text("/y") == "built\n"
        assert (await sandbox.files.stat("/x/link", follow=False)).target == "file"
        assert await sandbox.files.exists("/z/passwd")
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

    data = tar(("d/f", {"content": b"inside"}))
    pressed = {"": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[pack](data)
    (yard.context / "a.tar").write_bytes(pressed)
    await yard.build("ADD a.tar /added/\nCOPY a.tar /copied/\nADD Dockerfile /plain\n")
    found = await yard.look("cat /added/d/f; stat -c %s /copied/a.tar")
    assert found == f"inside{len(pressed)}\n"


@pytest.mark.parametrize(
    ("user", "ids"), [("app", "101:102"), ("7", "7:0"), ("7:app", "7:102"), ("0:0", "0:0")]
)
async def test_a_user_of_the_image_is_taken(
    yard: Yard, several_ids: None, user: str, ids: str
) -> None:
    image = await yard.build(f"USER {user}\nRUN echo $(id -u):$(id -g)\n")
    assert (yard.told.output, image.config["user"]) == (f"{ids}\n", ids)


async def test_a_program_that_is_not_there_is_said(yard: Yard) -> None:
    with pytest.raises(RequestError, match="Dockerfile:2: /bin/sh is not in the image"):
        await yard.build("FROM scratch\nRUN x\n", on_base=False)


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


async def test_an_entrypoint_forgets_the_command_of_the_image_below_and_not_its_own(
    yard: Yard,
) -> None:
    below = await yard.build('CMD ["a"]\n')
    assert below.config["cmd"] == ["a"]
    (yard.context / "Dockerfile").write_text('FROM it\nENTRYPOINT ["e"]\n')
    assert (await Image.build(yard.context, "two")).config["cmd"] == []
    both = await yard.build('CMD ["b"]\nENTRYPOINT ["e"]\n')
    assert (both.config["entrypoint"], both.config["cmd"]) == (["e"], ["b"])


async def test_the_machine_can_be_asked_for(yard: Yard) -> None:
    await yard.build(
        "ARG TARGETARCH\nARG TARGETOS\nRUN echo $TARGETOS/$TARGETARCH-$TARGETPLATFORM\n"
    )
    assert yard.told.output == f"{'/'.join(machine_platform())}-\n"


async def test_files_that_change_while_they_are_copied_are_not_remembered(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = yard.context / "f"
    file.write_text("one")
    bring = steps.bring

    async def bring_changed(workshop: Any, cargo: Any) -> int:
        file.write_text("two")
        return await bring(workshop, cargo)

    monkeypatch.setattr(steps, "bring", bring_changed)
    with pytest.raises(RequestError, match="changed while it was copied"):
        await yard.build("COPY f /f\n")
    monkeypatch.undo()
    monkeypatch.setenv("CLOISTER_STATE", str(yard.context.parent / "state"))
    await yard.build("COPY f /f\n")
    assert yard.told.cached() == []
    assert await yard.look("cat /f") == "two"
