"""A template's file says what it says, and what is not known in it is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloister.build.template_file import TemplateSpec, make_ready, parse_template
from cloister.errors import PolicyError, RequestError
from cloister.node.templates import Ready, Templates
from cloister.policy import ImageRoot, Policy, Storage
from cloister.store import Store

WHOLE = b"""
name = "web"
image = "base"
steps = ["a", "b"]
start = ["serve", "-p", "80"]
[ready]
port = 80
timeout = "5s"
[policy]
hostname = "web"
[limits]
memory = "64MiB"
"""


def test_a_whole_file_is_read() -> None:
    spec = parse_template(WHOLE, "f", Path("/x"))
    assert (spec.name, spec.image, spec.steps) == ("web", "base", ("a", "b"))
    assert spec.start == ("serve", "-p", "80")
    assert spec.ready == Ready((), 80, 5.0)
    assert spec.policy.limits.memory == 64 * 2**20
    assert spec.policy.hostname == "web"


def test_a_line_is_for_the_shell() -> None:
    spec = TemplateSpec("x", image="y", start="a && b")
    assert spec.start == ("/bin/sh", "-c", "a && b")


def test_a_dockerfile_is_found_from_where_the_file_is() -> None:
    spec = parse_template(b'name="x"\ndockerfile="D"\ncontext="c"', "f", Path("/x"))
    assert (spec.dockerfile, spec.directory) == (Path("/x/D"), Path("/x/c"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'nmae = "x"', 'did you mean "name"'),
        (b"name = 1", "write it as text"),
        (b'name = "Web"\nimage = "a"', "template is"),
        (b'name = "../x"\nimage = "a"', "template is"),
        (b'name = "x"', "an image or on a Dockerfile"),
        (b'name = "x"\nimage = "a"\ndockerfile = "b"', "an image or on a Dockerfile"),
        (b'name = "x"\nimage = "a"\ncontext = "b"', "context is for a dockerfile"),
        (b'name = "x"\nimage = "a"\n[ready]\nport = 0', "ports are from 1"),
        (b'name = "x"\nimage = "a"\n[ready]\nport = 1\ncommand = "x"', "keep one of them"),
        (b'name = "x"\nimage = "a"\n[ready]\ntimeout = "1s"', "no command or port"),
        (b'name = "x"\nimage = "a"\nready = 1', "write a table"),
        (b'name = "x"\nimage = "a"\n[ready]\nprot = 1', 'did you mean "port"'),
        (b'name = "x"\nimage = "a"\n[policy]\nroot = {kind = "host"}', "its image"),
        (b'name = "x"\nimage = "a"\n[policy.limits]\n[limits]', "limits stand twice"),
        (b'name = "x"\nimage = "a"\n[limits]\nmemroy = 1', "memory"),
        (b'name = "x"\nimage = "a"\nsteps = [1]', "shell lines"),
        (b'name = "x"\nimage = "a"\nstart = 5', "start is 5"),
        (b"\xff", "no TOML"),
    ],
)
def test_what_is_wrong_is_said(text: bytes, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        parse_template(text, "f", Path("/x"))


def test_no_ready_check_is_none() -> None:
    assert make_ready() is None
    with pytest.raises(RequestError):
        make_ready(timeout="1s")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    with Store.open(tmp_path / "state") as opened:
        yield opened


def put_image(store: Store, number: int) -> str:
    digest = f"sha256:{number:064x}"
    store.images.put(digest, [], "{}")
    return digest


def put(templates: Templates, image: str, policy: Policy | None = None) -> str:
    record = templates.put(
        "web",
        image,
        policy or Policy(),
        start=("a",),
        ready=Ready(("b",), None, 3.0),
        steps=("c",),
        base="base",
    )
    return record.reference


def test_each_build_is_a_version_and_a_name_means_the_newest(store: Store) -> None:
    templates = Templates(store)
    first, second = put_image(store, 1), put_image(store, 2)
    assert put(templates, first) == "web:1"
    assert put(templates, second) == "web:2"
    assert templates.find("web").image == second
    old = templates.find("web:1")
    assert (old.image, old.start, old.ready, old.steps) == (
        first,
        ("a",),
        Ready(("b",), None, 3.0),
        ("c",),
    )
    assert old.policy.root == ImageRoot(first)


def test_only_the_newest_versions_image_has_a_name(store: Store) -> None:
    templates = Templates(store)
    first, second = put_image(store, 1), put_image(store, 2)
    put(templates, first)
    assert store.images.find(first).names == ("template/web:1",)
    put(templates, second)
    assert store.images.find(first).names == ()
    assert store.images.find(second).names == ("template/web:2",)


def test_a_removed_version_is_not_found_and_the_others_are(store: Store) -> None:
    templates = Templates(store)
    put(templates, put_image(store, 1))
    put(templates, put_image(store, 2))
    assert templates.remove("web:2") == ["web:2"]
    assert templates.find("web").version == 1
    assert templates.remove("web") == ["web:1"]
    with pytest.raises(RequestError, match="no template"):
        templates.find("web")
    assert templates.all() == []


@pytest.mark.parametrize("reference", ["../x", "web:", "web:x", "Web", "", "web:1:2", "web/../x"])
def test_a_reference_that_is_none_is_refused(store: Store, reference: str) -> None:
    with pytest.raises(RequestError):
        Templates(store).find(reference)


def test_storage_that_nobody_asked_for_is_left_open(store: Store) -> None:
    templates = Templates(store)
    put(templates, put_image(store, 1))
    assert not templates.find("web").policy.storage_is_stated
    put(templates, put_image(store, 1), Policy(storage="disk"))
    assert templates.find("web").policy.storage is Storage.DISK
