"""What people write for an image, and what it means."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import RequestError
from cloister.image.reference import (
    ArchiveReference,
    LayoutReference,
    RegistryReference,
    TarReference,
    parse_image_name,
    parse_reference,
    split_pin,
)

DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (
            "docker://registry.example/python:3.12",
            RegistryReference("registry.example", None, "python", "3.12", None),
        ),
        (
            "docker://registry.example:5000/team/app",
            RegistryReference("registry.example", 5000, "team/app", "latest", None),
        ),
        (
            f"docker://localhost/app@{DIGEST}",
            RegistryReference("localhost", None, "app", None, DIGEST),
        ),
        (
            f"docker://[::1]:5000/app:1@{DIGEST}",
            RegistryReference("[::1]", 5000, "app", "1", DIGEST),
        ),
        ("oci:/srv/layout:tag", LayoutReference(Path("/srv/layout"), "tag")),
        ("oci:layout", LayoutReference(Path("layout"), None)),
        ("oci:/with:colon/layout", LayoutReference(Path("/with:colon/layout"), None)),
        ("docker-archive:app.tar", ArchiveReference(Path("app.tar"), None)),
        ("tar:rootfs.tar.gz", TarReference(Path("rootfs.tar.gz"))),
    ],
)
def test_a_reference_means_one_thing(text: str, meant: object) -> None:
    assert parse_reference(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        "",
        "python",
        "python:3.12",
        "docker://python:3.12",
        "docker://library/python",
        "docker:registry.example/python",
        "docker://registry.example/",
        "docker://registry.example/Upper",
        "docker://registry.example/a/../b",
        "docker://registry.example/a//b",
        "docker://registry.example/a?b",
        "docker://registry.example/a#b",
        "docker://registry.example/a b",
        "docker://registry.example/a%2f..",
        "docker://user@registry.example/a",
        "docker://registry.example:0/a",
        "docker://registry.example:99999/a",
        "docker://registry.example/a:",
        "docker://registry.example/a:-x",
        "docker://registry.example/a@sha256:abc",
        "docker://registry.example/a@md5:" + "a" * 32,
        "docker://registry.example/" + "a" * 256,
        "docker://regi\nstry.example/a",
        "oci:",
        "tar:a\0b",
        "http://registry.example/a",
    ],
)
def test_what_could_mean_something_else_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        parse_reference(text)


@given(st.text(max_size=40))
def test_any_text_is_a_reference_or_an_error(text: str) -> None:
    for candidate in (text, f"docker://{text}", f"docker://registry.example/{text}"):
        try:
            found = parse_reference(candidate)
        except RequestError:
            continue
        if isinstance(found, RegistryReference):
            assert parse_reference(f"docker://{found}") == found or found.digest


def test_a_pin_is_the_part_that_counts() -> None:
    assert split_pin(f"dev@{DIGEST}") == ("dev", DIGEST)
    assert split_pin(DIGEST) == ("", DIGEST)
    assert split_pin("dev:1") == ("dev:1", None)
    assert split_pin("dev@here") == ("dev@here", None)


@pytest.mark.parametrize("name", ["dev", "dev:1", "registry.example:5000/a/b:1", f"a/b@{DIGEST}"])
def test_names_of_images(name: str) -> None:
    assert parse_image_name(name) == name


@pytest.mark.parametrize("name", ["", "-x", "/x", "a b", "a\n", DIGEST, "a" * 300, None, "x/"])
def test_what_is_no_name_of_an_image(name: object) -> None:
    with pytest.raises(RequestError):
        parse_image_name(name)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("[::1]", True),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
        ("10.0.0.1", False),
    ],
)
def test_only_this_machine_itself_is_asked_in_the_clear(host: str, expected: bool) -> None:
    assert RegistryReference(host, None, "a", "1", None).is_loopback is expected
