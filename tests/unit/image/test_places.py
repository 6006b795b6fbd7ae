"""Credentials, lists of users, archives of archives and configurations, read from files."""

from __future__ import annotations

import base64
import io
import json
import os
import stat
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import ImageRefused, ProtocolViolation, RequestError
from cloister.image.accounts import find_user
from cloister.image.archive_index import find_places
from cloister.image.config import parse_config
from cloister.image.credentials import Credentials, find_credentials
from cloister.image.facts import LayerFacts, parse_facts
from cloister.image.library import effective_layers
from cloister.model import User


def config(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(document))
    return path


def test_credentials_are_found_for_their_host_alone(tmp_path: Path) -> None:
    auth = base64.b64encode(b"me:pass:word").decode()
    path = config(tmp_path, {"auths": {"registry.example": {"auth": auth}}})
    assert find_credentials("registry.example", path) == Credentials("me", "pass:word")
    assert find_credentials("registry.example:5000", path) is None
    assert find_credentials("other.example", tmp_path / "missing") is None
    assert "pass" not in repr(find_credentials("registry.example", path))


def test_a_helper_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "docker-credential-test"
    helper.write_text(
        '#!/bin/sh\nread host; echo "{\\"Username\\":\\"$host\\",\\"Secret\\":\\"s\\"}"\n'
    )
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    path = config(tmp_path, {"credHelpers": {"registry.example": "test"}})
    assert find_credentials("registry.example", path) == Credentials("registry.example", "s")
    assert find_credentials("other.example", path) is None
    helper.write_text("#!/bin/sh\nexit 1\n")
    assert find_credentials("registry.example", path) is None


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"auths": {"a": {"auth": "???"}}},
        {"credHelpers": {"a": "../evil"}},
        {"credsStore": "no"},
    ],
)
def test_credentials_that_cannot_be_read_are_an_error(tmp_path: Path, document: object) -> None:
    with pytest.raises(RequestError):
        find_credentials("a", config(tmp_path, document))


def layer(tmp_path: Path, name: str, **files: str) -> Path:
    (tmp_path / name / "etc").mkdir(parents=True)
    for file, text in files.items():
        (tmp_path / name / "etc" / file).write_text(text)
    return tmp_path / name


PASSWD = "root:x:0:0::/:/bin/sh\nworker:x:77:78::/:/bin/sh\nbroken\nodd:x:a:b::/:/bin/sh\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("worker", User(77, 78)),
        ("worker:crew", User(77, 99)),
        ("worker:5", User(77, 5)),
        ("77", User(77, 78)),
        ("12", User(12, 0)),
        ("12:13", User(12, 13)),
        ("root", User(0, 0)),
    ],
)
def test_a_user_is_looked_up_in_the_image(tmp_path: Path, text: str, expected: User) -> None:
    only = layer(tmp_path, "only", passwd=PASSWD, group="crew:x:99:\n")
    assert find_user(text, [only]) == expected


def test_upper_layers_decide_which_list_counts(tmp_path: Path) -> None:
    low = layer(tmp_path, "low", passwd="a:x:1:1::/:/\n")
    high = layer(tmp_path, "high", passwd="a:x:2:2::/:/\n")
    empty = layer(tmp_path, "empty")
    assert find_user("a", [high, low]) == User(2, 2)
    assert find_user("a", [empty, low]) == User(1, 1)
    removed = layer(tmp_path, "removed")
    os.mknod(removed / "etc" / "passwd", stat.S_IFCHR, 0)
    with pytest.raises(ImageRefused, match="has none"):
        find_user("a", [removed, low])
    hiding = layer(tmp_path, "hiding")
    os.setxattr(hiding / "etc", "user.overlay.opaque", b"y")
    with pytest.raises(ImageRefused, match="has none"):
        find_user("a", [hiding, low])


@pytest.mark.parametrize("kind", ["link", "pipe", "linked directory", "directory"])
def test_a_list_of_users_that_is_no_file_is_empty(tmp_path: Path, kind: str) -> None:
    low = layer(tmp_path, "low", passwd="a:x:1:1::/:/\n")
    top = tmp_path / "top"
    (top / "etc").mkdir(parents=True)
    place = top / "etc" / "passwd"
    if kind == "link":
        place.symlink_to(low / "etc" / "passwd")
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "directory":
        place.mkdir()
    else:
        (top / "etc").rmdir()
        (top / "etc").symlink_to(low / "etc")
    with pytest.raises(ImageRefused, match="has none"):
        find_user("a", [top])
    assert find_user("a", [low]) == User(1, 1)


def archive(*entries: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for info, content in entries:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def linked(name: str, target: str, kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_files_of_an_archive_are_found_without_unpacking(form: int) -> None:
    long = "d" * 90 + "/" + "f" * 120
    data = archive(
        (tarfile.TarInfo("a/layer.tar"), b"content"),
        (tarfile.TarInfo(long), b"x" * 1000),
        linked("b/layer.tar", "../a/layer.tar", tarfile.SYMTYPE),
        linked("c/layer.tar", "a/layer.tar", tarfile.LNKTYPE),
        linked("d/layer.tar", "d/layer.tar", tarfile.SYMTYPE),
        (tarfile.TarInfo("last"), b"end"),
        form=form,
    )
    places = find_places(io.BytesIO(data), 100, lambda _: None)
    for name in ("a/layer.tar", "b/layer.tar", "c/layer.tar"):
        place = places[name]
        assert data[place.offset : place.offset + place.size_bytes] == b"content"
    assert places[long].size_bytes == 1000
    assert "d/layer.tar" not in places and places["last"].size_bytes == 3


@given(st.binary(max_size=1500), st.integers(0, 1500), st.binary(max_size=8))
def test_any_bytes_are_an_archive_or_refused(junk: bytes, at: int, patch: bytes) -> None:
    whole = archive((tarfile.TarInfo("name"), b"content"))
    for data in (junk, whole[:at] + patch + whole[at + len(patch) :], whole[:at]):
        try:
            find_places(io.BytesIO(data), 100, lambda _: None)
        except ImageRefused:
            continue


def test_a_header_larger_than_memory_should_be_is_refused() -> None:
    info = tarfile.TarInfo("x")
    info.pax_headers = {"comment": "x" * 100_000}
    with pytest.raises(ImageRefused):
        find_places(io.BytesIO(archive((info, b""))), 100, lambda _: None)
    many = archive(*[(tarfile.TarInfo(str(number)), b"") for number in range(20)])
    with pytest.raises(ImageRefused, match="more than 10 entries"):
        find_places(io.BytesIO(many), 10, lambda _: None)


def test_an_image_for_another_machine_is_refused() -> None:
    rootfs = {"type": "layers", "diff_ids": []}
    with pytest.raises(ImageRefused, match="this machine is"):
        parse_config(json.dumps({"os": "linux", "architecture": "vax", "rootfs": rootfs}).encode())
    with pytest.raises(ImageRefused, match="this machine is"):
        parse_config(json.dumps({"os": "windows", "rootfs": rootfs}).encode())
    assert parse_config(json.dumps({"rootfs": rootfs}).encode()).env == {}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.sampled_from(["Env", "User", "WorkingDir", "Entrypoint", "Cmd", "Volumes"]),
)
def test_any_wish_is_read_or_refused(value: object, name: str) -> None:
    rootfs = {"type": "layers", "diff_ids": []}
    document = {"rootfs": rootfs, "config": {name: value}}
    try:
        parse_config(json.dumps(document).encode())
    except ImageRefused:
        return


FACTS = LayerFacts(1, 2, 3, 4, False, 5, 6, 7, 8, 9, 10, 11)


def test_facts_are_read_as_the_unpacker_writes_them() -> None:
    line = (
        '{"entries":1,"bytes":2,"whiteouts":3,"opaque":4,"opaque_top":false,"implied":5,'
        '"skipped":{"devices":6,"bookkeeping":7,"attributes":8},"strangers":9,"uid_max":10,'
        '"gid_max":11}\n'
    )
    assert parse_facts(line.encode()) == FACTS == parse_facts(FACTS.as_json())
    for wrong in ("", "[]", "{}", line.replace("2", "-2", 1), line.replace("2", '"2"', 1), "1"):
        with pytest.raises(ProtocolViolation):
            parse_facts(wrong)


def test_only_layers_that_show_are_kept() -> None:
    full = FACTS
    hiding = LayerFacts(1, 0, 0, 1, True, 0, 0, 0, 0, 0, 0, 0)
    empty = LayerFacts(0, 0, 0, 0, False, 0, 0, 0, 0, 0, 0, 0)
    facts = {"a": full, "b": full, "hiding": hiding, "empty": empty}
    assert effective_layers(["a", "b"], facts) == ["a", "b"]
    assert effective_layers(["a", "b", "a"], facts) == ["b", "a"]
    assert effective_layers(["a", "hiding", "b"], facts) == ["hiding", "b"]
    assert effective_layers(["empty", "a", "empty"], facts) == ["a"]
    assert effective_layers(["empty"], facts) == ["empty"]
