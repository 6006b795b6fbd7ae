"""Policies as text: read exactly, refused with the place and the nearest valid name."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import NotFound, PolicyError, RequestError
from cloister.model import (
    Limits,
    Mount,
    MountMode,
    Profile,
    Trust,
    User,
    VolumeMode,
    VolumeMount,
)
from cloister.policy import (
    MAXIMUM_POLICY_BYTES,
    DirectoryRoot,
    History,
    HostRoot,
    ImageRoot,
    LedgerMode,
    Policy,
    SecondLayer,
    Storage,
    load_policy,
    parse_policy,
    schema,
)

WHOLE = """
trust = "untrusted"
profile = "root"
hostname = "worker-1"
user = "nobody"
second_layer = "none"
storage = "disk"
history = "each-run"
ledger = "on"

[root]
kind = "host"
extra = ["/opt", "/srv/tools"]

[limits]
memory = "1GiB"
pids = 128
wall = 60
idle = "5m"
disk = "unlimited"

[env]
LANG = "C.UTF-8"
"odd name" = ""

[[mount]]
source = "."
target = "/workspace"

[[mount]]
source = "/data"
target = "/data"
mode = "read"

[[volume]]
name = "cache"
target = "/cache"

[[volume]]
name = "models"
target = "/models"
mode = "read"
"""


def test_a_whole_policy_is_the_same_thing_in_python() -> None:
    assert parse_policy(WHOLE) == Policy(
        trust="untrusted",
        profile="root",
        hostname="worker-1",
        user="nobody",
        second_layer="none",
        storage="disk",
        history="each-run",
        ledger="on",
        root=HostRoot(["/opt", "/srv/tools"]),
        limits=Limits(memory="1GiB", pids=128, wall=60, idle="5m", disk="unlimited"),
        env={"LANG": "C.UTF-8", "odd name": ""},
        mounts=[Mount(".", "/workspace"), Mount("/data", "/data", "read")],
        volumes=[VolumeMount("cache", "/cache"), VolumeMount("models", "/models", "read")],
    )


def test_an_empty_text_is_the_default_policy() -> None:
    assert parse_policy("") == parse_policy(b"") == Policy()


def test_a_directory_can_be_the_root() -> None:
    text = '[root]\nkind = "directory"\npath = "{}"'
    assert parse_policy(text.format("/srv/root")).root == DirectoryRoot("/srv/root")
    relative = parse_policy(text.format("root"), directory=Path("/srv"))
    assert relative.root == DirectoryRoot("/srv/root")
    with pytest.raises(PolicyError, match="absolute"):
        parse_policy(text.format("root"))


def test_an_image_can_be_the_root() -> None:
    assert parse_policy('[root]\nkind = "image"\nimage = "dev"').root == ImageRoot("dev")


def test_a_text_states_the_storage_or_leaves_it_to_follow() -> None:
    assert parse_policy('history = "each-run"').storage is Storage.DISK
    assert parse_policy('storage = "memory"').storage_is_stated
    assert not parse_policy('history = "none"').storage_is_stated


def test_relative_sources_start_at_the_given_directory() -> None:
    policy = parse_policy(WHOLE, directory=Path("/home/me"))
    assert [mount.source for mount in policy.mounts] == [Path("/home/me"), Path("/data")]


@pytest.mark.parametrize(
    ("text", "place", "nearest"),
    [
        ('\n[limits]\nmemroy = "1GiB"', "c.toml:3 limits.memroy", "memory"),
        ("limits = { pidz = 3 }", "c.toml:1 limits.pidz", "pids"),
        ('# x\nmemory = "1GiB"', "c.toml:2 memory", "limits.memory"),
        ('[limits]\ntrust = "internal"', "c.toml:2 limits.trust", "trust"),
        ("[limts]\npids = 3", "c.toml:1 limts", "limits"),
        ("zzz = 1", "c.toml:1 zzz", None),
        ("limits.memroy.x = 1", "c.toml:1 limits.memroy", "memory"),
        ('trust = "untrustd"', "c.toml:1 trust", "untrusted"),
        ('\nprofile = "rot"', "c.toml:2 profile", "root"),
        ('second_layer = "landlok"', "c.toml:1 second_layer", "landlock"),
        ('[root]\nkind = "hst"', "c.toml:2 root.kind", "host"),
        ('[[mount]]\nsource="a"\ntarget="/b"\nmdoe="read"', "c.toml:4 mount[0].mdoe", "mode"),
        ('["a b\\n"]', 'c.toml:1 "a b\\n"', None),
        ('storage = "dsk"', "c.toml:1 storage", "disk"),
        ('history = "each_run"', "c.toml:1 history", "each-run"),
        ('[root]\nkind = "imag"', "c.toml:2 root.kind", "image"),
        ('[[volume]]\nnmae = "a"', "c.toml:2 volume[0].nmae", "name"),
    ],
)
def test_the_unknown_is_an_error_with_place_and_nearest_name(
    text: str, place: str, nearest: str | None
) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, "c.toml")
    assert (caught.value.place, caught.value.nearest) == (place, nearest)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("trust = 3", "c.toml:1 trust"),
        ("hostname = true", "c.toml:1 hostname"),
        ('hostname = "a.b"', "c.toml:1 hostname"),
        ("user = 1.5", "c.toml:1 user"),
        ('user = "root"', "c.toml:1 user"),
        ('user = "1000:0"', "c.toml:1 user"),
        ("limits = 3", "c.toml:1 limits"),
        ("[[limits]]", "c.toml:1 limits"),
        ("[limits]\n\npids = -1", "c.toml:3 limits.pids"),
        ("[limits]\nwall = nan", "c.toml:2 limits.wall"),
        ("[limits]\nmemory = 1979-05-27", "c.toml:2 limits.memory"),
        ('[limits]\ndisk = "unlimited"', "c.toml:2 limits.disk"),
        ("[limits]\npids = 0x" + "f" * 99_999, "c.toml:2 limits.pids"),
        ("[env]\nA = 1", "c.toml:2 env.A"),
        ('[env]\n"A=B" = "1"', 'c.toml:2 env."A=B"'),
        ('[env]\nA = "\\u0000"', "c.toml:2 env.A"),
        ("[env.A]\nB = 1", "c.toml:1 env.A"),
        ("mount = 3", "c.toml:1 mount"),
        ("mount = [\n3]", "c.toml:2 mount[0]"),
        ("[mount]", "c.toml:1 mount"),
        ('[[mount]]\nsource = "a"', "c.toml:1 mount[0]"),
        ('[[mount]]\ntarget = "/a"', "c.toml:1 mount[0]"),
        ('[[mount]]\nsource = 3\ntarget = "/a"', "c.toml:2 mount[0].source"),
        ('[[mount]]\nsource = "a"\ntarget = "/proc"', "c.toml:3 mount[0].target"),
        ('[[mount]]\nsource = "a"\ntarget = "/b"\nmode = "x"', "c.toml:4 mount[0].mode"),
        (
            '[[mount]]\nsource = "a"\ntarget = "/b"\n' * 2,
            "c.toml:6 mount[1].target",
        ),
        ("root = 1", "c.toml:1 root"),
        ("[root]", "c.toml:1 root"),
        ('[root]\nkind = "directory"', "c.toml:1 root"),
        ('[root]\nkind = "directory"\npath = "/"', "c.toml:3 root.path"),
        ('[root]\nkind = "directory"\npath = 3', "c.toml:3 root.path"),
        ('[root]\nkind = "host"\npath = "/x"', "c.toml:3 root.path"),
        ('[root]\nkind = "directory"\npath = "/x"\nextra = []', "c.toml:4 root.extra"),
        ('[root]\nkind = "host"\nextra = "/opt"', "c.toml:3 root.extra"),
        ('[root]\nkind = "host"\nextra = [\n"/opt",\n"/proc"]', "c.toml:5 root.extra[1]"),
        ('[root]\nkind = ["host"]', "c.toml:2 root.kind"),
        ('[root]\nkind = "image"', "c.toml:1 root"),
        ('[root]\nkind = "image"\nimage = "-x"', "c.toml:3 root.image"),
        ('[root]\nkind = "image"\nimage = 3', "c.toml:3 root.image"),
        ('[root]\nkind = "image"\nimage = "a"\npath = "/x"', "c.toml:4 root.path"),
        ('[root]\nkind = "image"\nimage = "a"\nextra = []', "c.toml:4 root.extra"),
        ('[root]\nkind = "host"\nimage = "a"', "c.toml:3 root.image"),
        ('[root]\nkind = "directory"\npath = "/x"\nimage = "a"', "c.toml:4 root.image"),
        ('\nhistory = "each-run"\nstorage = "memory"', "c.toml:2 history"),
        ('storage = "memory"\n[limits]\ndisk = "unlimited"', "c.toml:3 limits.disk"),
        ("volume = 3", "c.toml:1 volume"),
        ("volume = [\n3]", "c.toml:2 volume[0]"),
        ('[[volume]]\nname = "a"', "c.toml:1 volume[0]"),
        ('[[volume]]\ntarget = "/a"', "c.toml:1 volume[0]"),
        ('[[volume]]\nname = "A"\ntarget = "/a"', "c.toml:2 volume[0].name"),
        ('[[volume]]\nname = "a"\ntarget = "/sys"', "c.toml:3 volume[0].target"),
        ('[[volume]]\nname = "a"\ntarget = "/b"\nmode = "copy"', "c.toml:4 volume[0].mode"),
        ('[[volume]]\nname = "a"\ntarget = "/b"\n' * 2, "c.toml:6 volume[1].target"),
        (
            '[[volume]]\nname = "a"\ntarget = "/b"\n[[mount]]\nsource = "a"\ntarget = "/b"',
            "c.toml:3 volume[0].target",
        ),
        ("a = 1\n\na = 2", "c.toml:3"),
        ("[a]\n[a]", "c.toml:2"),
        ("trust = internal", "c.toml:1"),
        ('x = 1\n"', "c.toml:2"),
        ("\n\n\x00", "c.toml:3"),
        (b"a = 1\n\xff", "c.toml:2"),
        ("\n\ud800", "c.toml:2"),
        ("a = " + "1" * 5000, "c.toml"),
        ("\na = " + "[" * 100_000, "c.toml:2"),
    ],
    ids=lambda value: repr(value[:24]),
)
def test_the_wrong_is_an_error_with_its_place(text: str, place: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, "c.toml")
    assert caught.value.place == place
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_a_text_of_the_greatest_size_is_read_and_one_byte_more_refused() -> None:
    text = "#" * MAXIMUM_POLICY_BYTES
    assert parse_policy(text) == parse_policy(text.encode()) == Policy()
    for longer in (text + "#", (text + "#").encode(), "#" + "ü" * (MAXIMUM_POLICY_BYTES // 2)):
        with pytest.raises(PolicyError, match="1048576"):
            parse_policy(longer)


@pytest.mark.parametrize(
    "text",
    [
        ".".join("a" * 500_000) + " = 1",
        "[" + ".".join("a" * 500_000) + "]",
        "a = " + "[" * 1_000_000,
        "a = " + "{a=" * 300_000,
        "a = " + '"' * 1_000_000,
        "a = '''" + "''\n" * 300_000,
        "[[a]]\n" * 150_000,
        "\n".join(f"k{index} = 1" for index in range(80_000)),
    ],
    ids=["dotted", "header", "arrays", "tables", "quotes", "open", "elements", "keys"],
)
def test_the_worst_megabyte_is_refused_in_seconds(text: str) -> None:
    begun_s = time.process_time()
    with pytest.raises(PolicyError):
        parse_policy(text)
    assert time.process_time() - begun_s < 10


def test_recursion_in_the_toml_reader_is_a_policy_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # Brackets past the locator's bound never get there; another interpreter may nest for less.
    def recurse(text: str) -> dict[str, Any]:
        raise RecursionError

    monkeypatch.setattr("cloister.policy.parse.tomllib.loads", recurse)
    with pytest.raises(PolicyError, match="nested too deeply"):
        parse_policy("a = 1")


def test_a_file_is_read_and_its_relative_paths_start_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "cloister.toml"
    file.write_text('[[mount]]\nsource = "src"\ntarget = "/src"')
    assert load_policy(file).mounts == (Mount(tmp_path / "src", "/src"),)
    assert load_policy(str(file)) == load_policy(file)


def test_errors_in_a_file_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "cloister.toml"
    file.write_text("[limits]\nmemroy = 1")
    with pytest.raises(PolicyError) as caught:
        load_policy(file)
    assert caught.value.place == f"{file}:2 limits.memroy"


def test_a_file_that_cannot_be_read_is_the_callers_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        load_policy(tmp_path / "missing")
    assert caught.value.what == str(tmp_path / "missing")
    for path in (tmp_path, "", "a\0b"):
        with pytest.raises(RequestError):
            load_policy(path)
    with pytest.raises(PolicyError, match="1048576"):
        load_policy("/dev/zero")


fragments = st.sampled_from(
    [*schema(), "[limits]", "[[mount]]", "[[volume]]", "[root]", "[env]", " = ", "=", '"', "'",
     '"""', "[", "]", "{", "}", ",", ".", "\n", "#", "1", "-1", "nan", "true", '"1GiB"',
     '"host"', "source", "kind"]
)  # fmt: skip


@given(st.text() | st.binary() | st.lists(fragments).map("".join))
def test_any_text_is_a_policy_or_a_policy_error(text: str | bytes) -> None:
    try:
        assert isinstance(parse_policy(text), Policy)
    except PolicyError as error:
        assert error.place.startswith("policy")


plain = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
names = plain.filter(lambda name: name and "=" not in name)
parts = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=9)
targets = parts.filter(lambda part: part not in (".", "..", "proc", "dev", "sys", "etc")).map(
    lambda part: f"/{part}"
)
policies = st.builds(
    Policy,
    trust=st.sampled_from(Trust),
    profile=st.just(Profile.ROOT),
    limits=st.builds(
        Limits,
        memory=st.integers(2**24, 2**63 - 1) | st.just("unlimited"),
        disk=st.integers(2**20, 2**63 - 1),
        pids=st.integers(2, 10**6),
        cpus=st.floats(0.01, 4096),
        wall=st.floats(0.001, 10**9),
    ),
    mounts=st.lists(
        st.builds(Mount, plain.filter(bool), targets, st.sampled_from(MountMode)),
        unique_by=lambda mount: mount.target,
        max_size=3,
    ),
    env=st.dictionaries(names, plain, max_size=3),
    root=st.builds(HostRoot, st.lists(targets, max_size=2))
    | targets.filter(lambda path: path.strip("/.")).map(DirectoryRoot)
    | st.from_regex(r"[.0-~][!-~]{0,254}", fullmatch=True).map(ImageRoot),
    hostname=st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True),
    second_layer=st.sampled_from(SecondLayer),
    user=st.none() | st.builds(User, st.integers(0, 65535), st.integers(0, 65535)),
    storage=st.sampled_from([None, Storage.DISK]),
    history=st.sampled_from(History),
    ledger=st.sampled_from([None, *LedgerMode]),
    volumes=st.lists(
        st.builds(
            VolumeMount,
            st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,62}", fullmatch=True),
            # One level further down, where no mount is.
            targets.map(lambda target: f"{target}/volume"),
            st.sampled_from(VolumeMode),
        ),
        unique_by=lambda volume: volume.target,
        max_size=3,
    ),
)


@given(policies)
def test_a_policy_written_out_is_read_back_the_same(policy: Policy) -> None:
    again = parse_policy(to_toml(policy.as_dict()))
    assert again == policy
    assert again.digest() == policy.digest()


def to_toml(table: Mapping[str, Any]) -> str:
    lines = [f"{key} = {written(value)}" for key, value in table.items() if not is_nested(value)]
    for name, value in table.items():
        if isinstance(value, dict):
            lines += [f"[{name}]", *pairs(value)]
        elif is_nested(value):
            for element in value:
                lines += [f"[[{name}]]", *pairs(element)]
    return "\n".join(lines) + "\n"


def is_nested(value: object) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and all(isinstance(element, dict) for element in value)
    )


def pairs(table: Mapping[str, Any]) -> list[str]:
    return [f"{written(key)} = {written(value)}" for key, value in table.items()]


def written(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(written(element) for element in value)}]"
    if not isinstance(value, str):
        return repr(value)
    return '"' + "".join(c if c.isalnum() else f"\\U{ord(c):08x}" for c in value) + '"'
