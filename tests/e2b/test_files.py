"""Files, by E2B's Python client."""

from __future__ import annotations

import time
import urllib.error
import urllib.request

import pytest
from e2b import FilesystemEventType, FileType, Sandbox
from e2b.exceptions import (
    AuthenticationException,
    FileNotFoundException,
    InvalidArgumentException,
    SandboxException,
)
from e2b.sandbox.commands.command_handle import CommandExitException


@pytest.mark.parametrize("path", ["plain", "/home/user/absolute", "~/tilde", "new/sub/dir/deep"])
def test_what_is_written_is_read_again(shared: Sandbox, path: str) -> None:
    info = shared.files.write(path, "text é")
    assert info.path.startswith("/home/user/")
    assert shared.files.read(path) == "text é"
    assert shared.files.read(path, format="bytes") == "text é".encode()
    assert b"".join(shared.files.read(path, format="stream")) == "text é".encode()


def test_a_file_is_written_as_another_user(shared: Sandbox) -> None:
    shared.files.write("/root/secret", "x", user="root")
    assert shared.files.read("/root/secret", user="root") == "x"
    assert shared.commands.run("stat -c %U /root/secret", user="root").stdout == "root\n"


def test_an_empty_file_stays_empty(shared: Sandbox) -> None:
    shared.files.write("empty", "")
    assert shared.files.read("empty") == ""


def test_several_files_go_in_one_request(shared: Sandbox) -> None:
    files = [
        {"path": "/home/user/several/one", "data": "1"},
        {"path": 'several/odd "name".txt', "data": b"\x00\xff"},
    ]
    written = shared.files.write_files(files)
    assert [each.path for each in written] == [
        "/home/user/several/one",
        '/home/user/several/odd "name".txt',
    ]
    assert shared.files.read('several/odd "name".txt', format="bytes") == b"\x00\xff"


@pytest.mark.parametrize("options", [{"gzip": True}, {"use_octet_stream": True}])
def test_other_encodings_of_an_upload_are_read(shared: Sandbox, options: dict[str, bool]) -> None:
    shared.files.write("encoded", "y" * 300_000, **options)
    assert shared.files.read("encoded") == "y" * 300_000


def test_metadata_is_kept_with_the_file_until_the_next_upload(sandbox: Sandbox) -> None:
    sandbox.files.write("noted", "1", metadata={"author": "ann", "kind": "draft"})
    assert sandbox.files.get_info("noted").metadata == {"author": "ann", "kind": "draft"}
    sandbox.files.rename("noted", "renamed")
    assert sandbox.files.get_info("renamed").metadata == {"author": "ann", "kind": "draft"}
    sandbox.files.write("renamed", "2")
    assert not sandbox.files.get_info("renamed").metadata


def test_metadata_is_listed_and_may_be_set_from_inside(sandbox: Sandbox) -> None:
    sandbox.files.write("set/above", "1", metadata={"author": "ann"})
    sandbox.files.write("set/below", "1")
    script = "import os; os.setxattr('set/below', 'user.e2b.author', b'ben')"
    sandbox.commands.run(f'python3 -c "{script}"')
    listed = {each.name: each.metadata for each in sandbox.files.list("set")}
    assert listed == {"above": {"author": "ann"}, "below": {"author": "ben"}}
    assert sandbox.files.get_info("set/below").metadata == {"author": "ben"}


def test_files_are_written_and_read_where_only_root_may(sandbox: Sandbox) -> None:
    """As E2B's own daemon does it: by root, for the user."""
    sandbox.files.write("/app/src/main.py", "1")
    sandbox.files.make_dir("/data/sets")
    sandbox.files.write("/opt/tool.txt", "x" * 300_000)
    owners = sandbox.commands.run(
        "stat -c %U /app /app/src /app/src/main.py /data/sets /opt/tool.txt"
    )
    assert owners.stdout.split() == ["user"] * 5
    assert sandbox.commands.run("wc -c < /opt/tool.txt").stdout == "300000\n"
    sandbox.commands.run("echo kept > /root/kept; chmod 600 /root/kept", user="root")
    assert sandbox.files.read("/root/kept") == "kept\n"
    assert [each.name for each in sandbox.files.list("/root")] == ["kept"]
    # The command itself is still the user's.
    with pytest.raises(CommandExitException):
        sandbox.commands.run("cat /root/kept")


def test_root_goes_no_way_that_a_program_inside_has_laid(sandbox: Sandbox) -> None:
    sandbox.commands.run(
        "mkdir /etc/own; echo roots > /etc/own/kept; chmod 700 /etc/own", user="root"
    )
    sandbox.commands.run("ln -s /etc/own/kept planted; ln -s /etc/own way; ln -s /etc/own /tmp/way")
    for path in ("way/kept", "/tmp/way/kept", "way/new", "/tmp/way/deep/new"):
        with pytest.raises(SandboxException):
            sandbox.files.write(path, "theirs")
    with pytest.raises(SandboxException):
        sandbox.files.read("planted")
    # The user's own to replace: the link goes, and what it led to stays.
    sandbox.files.write("planted", "theirs")
    with pytest.raises(SandboxException):
        sandbox.files.rename("/etc/own/kept", "/tmp/way/moved")
    found = sandbox.commands.run("cat /etc/own/kept; ls /etc/own", user="root").stdout.split()
    assert found == ["roots", "kept"]
    # Named itself, no program can have led there; and a link of root's own is followed.
    sandbox.commands.run("ln -s own /etc/other", user="root")
    sandbox.files.write("/etc/own/kept", "asked for")
    sandbox.files.write("/etc/other/more", "asked for")
    assert sandbox.files.read("/etc/other/kept") == "asked for"


def test_info_tells_what_a_path_is(shared: Sandbox) -> None:
    shared.files.write("told", "12345")
    info = shared.files.get_info("told")
    assert (info.name, info.type, info.size) == ("told", FileType.FILE, 5)
    assert (info.permissions, info.mode, info.owner) == ("-rw-r--r--", 0o644, "user")
    shared.commands.run("ln -sf told link; ln -sf nowhere broken")
    assert shared.files.get_info("link").symlink_target == "/home/user/told"
    assert shared.files.get_info("link").permissions == "Lrwxrwxrwx"
    shared.commands.run("mkdir -p everybody; chmod 1777 everybody")
    assert shared.files.get_info("everybody").permissions == "dtrwxrwxrwx"
    assert shared.files.exists("broken")


def test_lists_go_as_deep_as_asked(sandbox: Sandbox) -> None:
    sandbox.files.write("a/b/c", "")
    sandbox.files.write("a/z", "")
    assert [each.path for each in sandbox.files.list("/home/user")] == ["/home/user/a"]
    deep = sandbox.files.list("/home/user", depth=3)
    assert [each.path.removeprefix("/home/user/") for each in deep] == ["a", "a/b", "a/b/c", "a/z"]


def test_directories_are_made_once(shared: Sandbox) -> None:
    assert shared.files.make_dir("made/here") is True
    assert shared.files.make_dir("made/here") is False
    shared.files.write("made/file", "")
    with pytest.raises(InvalidArgumentException):
        shared.files.make_dir("made/file")


def test_removing_and_renaming(shared: Sandbox) -> None:
    shared.files.write("old", "1")
    assert shared.files.rename("old", "moved/new").path == "/home/user/moved/new"
    assert not shared.files.exists("old")
    shared.files.remove("moved")
    assert not shared.files.exists("moved/new")
    shared.files.remove("moved")
    with pytest.raises(FileNotFoundException):
        shared.files.rename("old", "elsewhere")


def test_what_is_missing_or_a_directory_is_not_read(shared: Sandbox) -> None:
    with pytest.raises(FileNotFoundException):
        shared.files.read("/not/there")
    with pytest.raises(InvalidArgumentException, match="is a directory"):
        shared.files.read("/home/user")
    with pytest.raises(AuthenticationException):
        shared.files.read("x", user="nobody-such")


def test_an_upload_is_three_events_for_a_watcher(sandbox: Sandbox) -> None:
    watch = sandbox.files.watch_dir("/home/user")
    sandbox.files.write("new", "1")
    events = watch.get_new_events()
    assert [each.type for each in events] == [
        FilesystemEventType.CREATE,
        FilesystemEventType.CHMOD,
        FilesystemEventType.WRITE,
    ]
    assert {each.name for each in events} == {"new"}
    sandbox.files.write("new", "2")
    assert [each.type for each in watch.get_new_events()] == [FilesystemEventType.WRITE]
    watch.stop()


def test_a_watcher_sees_what_programs_do_also_in_new_directories(sandbox: Sandbox) -> None:
    watch = sandbox.files.watch_dir("/home/user", recursive=True)
    sandbox.files.make_dir("sub")
    sandbox.commands.run("echo 1 > sub/f; mv sub/f sub/g; chmod 600 sub/g; rm sub/g")
    seen: list[tuple[str, str]] = []
    give_up = time.monotonic() + 5
    while ("sub/g", "remove") not in seen and time.monotonic() < give_up:
        seen += [(each.name, each.type.value) for each in watch.get_new_events()]
        time.sleep(0.01)
    for wanted in [
        ("sub", "create"),
        ("sub/f", "create"),
        ("sub/f", "write"),
        ("sub/f", "rename"),
        ("sub/g", "create"),
        ("sub/g", "chmod"),
        ("sub/g", "remove"),
    ]:
        assert wanted in seen
    watch.stop()


def test_a_file_or_nothing_cannot_be_watched(shared: Sandbox) -> None:
    shared.files.write("file", "")
    with pytest.raises(InvalidArgumentException):
        shared.files.watch_dir("/home/user/file")
    with pytest.raises(FileNotFoundException):
        shared.files.watch_dir("/not/there")


def test_a_signed_url_reads_and_writes_one_path_until_it_expires(shared: Sandbox) -> None:
    shared.files.write("signed", "content")
    url = shared.download_url("signed", use_signature_expiration=60)
    assert urllib.request.urlopen(url).read() == b"content"
    with pytest.raises(urllib.error.HTTPError) as forged:
        urllib.request.urlopen(url.replace("path=signed", "path=other"))
    assert forged.value.code == 401
    late = shared.download_url("signed", use_signature_expiration=-60)
    with pytest.raises(urllib.error.HTTPError) as expired:
        urllib.request.urlopen(late)
    assert expired.value.read() == b'{"code":401,"message":"signature is already expired"}'
    forged.value.close()
    expired.value.close()
