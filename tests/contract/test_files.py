"""Single files and directories: every operation, any bytes, any name, any size."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator

import pytest

from cloister import AlreadyExists, Exhausted, FileError, NotFound, RequestError, Sandbox

# A name that no encoding of text gives: the bytes 0xff 0xfe, a space and a newline.
ODD = os.fsdecode(b"\xff\xfe \n")


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 5000])
async def test_what_was_written_is_read_back(sandbox: Sandbox, content: bytes) -> None:
    await sandbox.files.write("/workspace/file", content)
    assert await sandbox.files.read("/workspace/file") == content
    inside = await sandbox.run(["sha256sum", "/workspace/file"])
    assert inside.stdout.split()[0] == hashlib.sha256(content).hexdigest()


async def test_text_is_written_and_read_as_utf8(sandbox: Sandbox) -> None:
    await sandbox.files.write("/workspace/file", "grüße\n")
    assert await sandbox.files.read("/workspace/file") == "grüße\n".encode()
    assert await sandbox.files.read_text("/workspace/file") == "grüße\n"
    await sandbox.files.write("/workspace/file", b"a\xff")
    assert await sandbox.files.read_text("/workspace/file") == "a\ufffd"


async def test_a_big_file_streams_in_and_out(sandbox: Sandbox) -> None:
    block = os.urandom(1 << 20)

    async def blocks() -> AsyncIterator[bytes]:
        for _ in range(96):
            yield block

    await sandbox.files.write("/workspace/big", blocks())
    assert (await sandbox.files.stat("/workspace/big")).size == 96 << 20
    expected = hashlib.sha256(block * 96).hexdigest()
    assert (await sandbox.run("sha256sum big")).stdout.split()[0] == expected
    seen = hashlib.sha256()
    async for chunk in sandbox.files.stream("/workspace/big"):
        seen.update(chunk)
    assert seen.hexdigest() == expected


async def test_a_part_can_be_read(sandbox: Sandbox) -> None:
    await sandbox.files.write("/workspace/file", "0123456789")

    async def part(**where: int) -> bytes:
        return b"".join([c async for c in sandbox.files.stream("/workspace/file", **where)])

    assert await part(offset=3, length=4) == b"3456"
    assert await part(offset=8) == b"89"
    assert await part(offset=100) == b""


async def test_content_may_come_in_pieces(sandbox: Sandbox) -> None:
    await sandbox.files.write("/workspace/file", [b"one ", b"", b"two"])
    assert await sandbox.files.read("/workspace/file") == b"one two"


async def test_more_than_the_limit_is_refused_and_less_is_not(sandbox: Sandbox) -> None:
    await sandbox.files.write("/workspace/file", bytes(1000))
    with pytest.raises(Exhausted) as raised:
        await sandbox.files.read("/workspace/file", limit=999)
    assert raised.value.limit == "output"
    assert len(await sandbox.files.read("/workspace/file", limit=1000)) == 1000


async def test_a_write_makes_the_directories_above(sandbox: Sandbox) -> None:
    await sandbox.files.write("/workspace/a/b/c", "x")
    assert await sandbox.files.read("/workspace/a/b/c") == b"x"
    with pytest.raises(NotFound):
        await sandbox.files.write("/workspace/d/e", "x", parents=False)
    assert not await sandbox.files.exists("/workspace/d")


async def test_a_write_keeps_the_mode_of_what_it_replaces(sandbox: Sandbox) -> None:
    await sandbox.files.write("/workspace/tool", "#!/bin/sh\necho one", mode=0o755)
    await sandbox.files.write("/workspace/tool", "#!/bin/sh\necho two")
    assert (await sandbox.run(["/workspace/tool"])).stdout == "two\n"
    assert (await sandbox.files.stat("/workspace/tool")).mode == 0o755


async def test_a_write_goes_through_a_link(sandbox: Sandbox) -> None:
    (await sandbox.run("ln -s real link; echo old > real")).check()
    await sandbox.files.write("/workspace/link", "new")
    assert await sandbox.files.read("/workspace/real") == b"new"
    assert (await sandbox.files.stat("/workspace/link", follow=False)).target == "real"


async def test_a_write_that_is_cut_leaves_the_old_content(sandbox: Sandbox) -> None:
    await sandbox.files.write("/workspace/file", "old")

    async def broken() -> AsyncIterator[bytes]:
        yield b"new"
        raise ConnectionError("the source failed")

    with pytest.raises(ConnectionError):
        await sandbox.files.write("/workspace/file", broken())
    assert await sandbox.files.read("/workspace/file") == b"old"


async def test_append_adds_at_the_end(sandbox: Sandbox) -> None:
    await sandbox.files.append("/workspace/new/log", "one\n")
    await sandbox.files.append("/workspace/new/log", b"two\n")
    assert await sandbox.files.read_text("/workspace/new/log") == "one\ntwo\n"


async def test_a_name_may_hold_any_bytes(sandbox: Sandbox) -> None:
    path = f"/workspace/{ODD}"
    await sandbox.files.write(path, "odd")
    inside = await sandbox.run(["python3", "-c", "import os; print(os.listdir(b'/workspace'))"])
    assert inside.stdout == f"[{os.fsencode(ODD)!r}]\n"
    assert [entry.name for entry in await sandbox.files.list()] == [ODD]
    assert await sandbox.files.read(path) == b"odd"
    await sandbox.files.move(path, path + "2")
    assert (await sandbox.files.stat(path + "2")).size == 3
    await sandbox.files.remove(path + "2")
    assert await sandbox.files.list() == []


async def test_a_listing_says_what_is_there(sandbox: Sandbox) -> None:
    (await sandbox.run("mkdir d; printf abc > f; chmod 640 f; ln -s d/x l; mkfifo p")).check()
    entries = {entry.name: entry for entry in await sandbox.files.list("/workspace")}
    assert list(entries) == ["d", "f", "l", "p"]
    assert [entry.kind for entry in entries.values()] == ["directory", "file", "link", "other"]
    assert (entries["f"].size, entries["f"].mode) == (3, 0o640)
    assert (entries["f"].uid, entries["f"].gid) == (1000, 1000)
    assert (entries["l"].target, entries["f"].target) == ("d/x", None)


async def test_a_listing_of_many_is_whole(sandbox: Sandbox) -> None:
    source = "[open(f'/workspace/{n:05}', 'w').close() for n in range(5000)]"
    (await sandbox.run(["python3", "-c", source])).check()
    names = [entry.name for entry in await sandbox.files.list()]
    assert names == [f"{n:05}" for n in range(5000)]


async def test_stat_follows_a_link_unless_told_not_to(sandbox: Sandbox) -> None:
    (await sandbox.run("printf abc > f; ln -s f l; ln -s nowhere dangling")).check()
    assert (await sandbox.files.stat("/workspace/l")).kind == "file"
    assert (await sandbox.files.stat("/workspace/l", follow=False)).kind == "link"
    with pytest.raises(NotFound):
        await sandbox.files.stat("/workspace/dangling")
    assert await sandbox.files.exists("/workspace/dangling")
    assert not await sandbox.files.exists("/workspace/nowhere")


async def test_a_directory_is_made_once_or_where_it_is_already(sandbox: Sandbox) -> None:
    await sandbox.files.make("/workspace/a/b/c", mode=0o700)
    assert (await sandbox.files.stat("/workspace/a/b/c")).mode == 0o700
    await sandbox.files.make("/workspace/a/b/c")
    with pytest.raises(AlreadyExists):
        await sandbox.files.make("/workspace/a/b/c", parents=False)
    with pytest.raises(NotFound):
        await sandbox.files.make("/workspace/x/y", parents=False)


async def test_a_move_replaces_only_when_told_to(sandbox: Sandbox) -> None:
    await sandbox.files.write("/workspace/a", "a")
    await sandbox.files.write("/workspace/b", "b")
    with pytest.raises(AlreadyExists):
        await sandbox.files.move("/workspace/a", "/workspace/b")
    assert await sandbox.files.read("/workspace/b") == b"b"
    await sandbox.files.move("/workspace/a", "/workspace/b", replace=True)
    assert await sandbox.files.read("/workspace/b") == b"a"
    assert not await sandbox.files.exists("/workspace/a")
    await sandbox.files.make("/workspace/tree/in")
    await sandbox.files.move("/workspace/tree", "/home/user/tree")
    assert await sandbox.files.exists("/home/user/tree/in")


async def test_only_a_recursive_remove_takes_a_full_directory(sandbox: Sandbox) -> None:
    await sandbox.files.write("/workspace/d/f", "x")
    with pytest.raises(FileError) as raised:
        await sandbox.files.remove("/workspace/d")
    assert raised.value.errno_name == "ENOTEMPTY"
    await sandbox.files.remove("/workspace/d", recursive=True)
    assert await sandbox.files.list() == []
    with pytest.raises(NotFound):
        await sandbox.files.remove("/workspace/d", recursive=True)


async def test_a_remove_takes_links_and_not_what_they_lead_to(sandbox: Sandbox) -> None:
    (await sandbox.run("mkdir kept d; touch kept/f; ln -s ../kept d/l; ln -s kept top")).check()
    await sandbox.files.remove("/workspace/d", recursive=True)
    await sandbox.files.remove("/workspace/top", recursive=True)
    assert [entry.name for entry in await sandbox.files.list()] == ["kept"]
    assert await sandbox.files.exists("/workspace/kept/f")


async def test_a_tree_deeper_than_any_path_is_removed(sandbox: Sandbox) -> None:
    source = "import os\nfor n in range(3000): os.mkdir('deeper'); os.chdir('deeper')"
    (await sandbox.run(["python3", "-c", source])).check()
    await sandbox.files.remove("/workspace/deeper", recursive=True)
    assert await sandbox.files.list() == []


@pytest.mark.parametrize(
    ("path", "errno_name"),
    [
        ("/workspace", "EISDIR"),
        ("/etc/passwd/below", "ENOTDIR"),
        ("/workspace/closed/file", "EACCES"),
        ("/workspace/pipe", "EINVAL"),
        ("/dev/zero", "EINVAL"),
        ("/workspace/" + "n" * 256, "ENAMETOOLONG"),
        ("/workspace/loop", "ELOOP"),
    ],
)
async def test_what_cannot_be_read_says_why(sandbox: Sandbox, path: str, errno_name: str) -> None:
    (await sandbox.run("mkfifo pipe; ln -s loop loop; mkdir -m 0 closed")).check()
    with pytest.raises(FileError) as raised:
        await sandbox.files.read(path)
    assert raised.value.errno_name == errno_name
    assert await sandbox.files.read("/etc/hostname") == b"sandbox\n"


@pytest.mark.parametrize(
    ("path", "errno_name"),
    [
        ("/workspace", "EISDIR"),
        ("/etc/passwd/below", "ENOTDIR"),
        ("/usr/bin/env", "EACCES or EROFS"),
        ("/workspace/pipe", "EINVAL"),
    ],
)
async def test_what_cannot_be_written_says_why(
    sandbox: Sandbox, path: str, errno_name: str
) -> None:
    (await sandbox.run("mkfifo pipe")).check()
    for attempt in (sandbox.files.write, sandbox.files.append):
        with pytest.raises(FileError) as raised:
            await attempt(path, "x")
        assert raised.value.errno_name in errno_name.split(" or ")
    await sandbox.files.write("/workspace/fine", "x")


@pytest.mark.parametrize("path", ["", "relative", "./x", "/a\0b", "/" + "a/" * 3000])
async def test_a_path_that_is_none_is_the_callers_error(sandbox: Sandbox, path: str) -> None:
    files = sandbox.files
    for attempt in (files.read, files.list, files.stat, files.make, files.remove, files.exists):
        with pytest.raises(RequestError):
            await attempt(path)
    with pytest.raises(RequestError):
        await files.write(path, "x")
    with pytest.raises(RequestError):
        await files.move("/workspace", path)


async def test_files_are_touched_as_the_user_who_is_named(
    sandbox: Sandbox, several_ids: None
) -> None:
    await sandbox.files.write("/tmp/theirs", "x", user="nobody", mode=0o600)
    assert (await sandbox.files.stat("/tmp/theirs")).uid == 65_534
    with pytest.raises(FileError) as raised:
        await sandbox.files.read("/tmp/theirs")
    assert raised.value.errno_name == "EACCES"
    assert await sandbox.files.read("/tmp/theirs", user="nobody") == b"x"


async def test_a_stream_left_half_way_leaves_nothing_running(sandbox: Sandbox) -> None:
    await sandbox.files.write("/workspace/big", bytes(32 << 20))
    for _ in range(5):
        stream = sandbox.files.stream("/workspace/big")
        assert await anext(stream)
        await stream.aclose()
    assert (await sandbox.run("echo well")).stdout == "well\n"
