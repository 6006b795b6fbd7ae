"""Manifests and indexes that could be read in two ways are read in none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import ImageRefused
from cloister.image.document import MAXIMUM_DOCUMENT_BYTES, parse_document
from cloister.image.manifest import (
    DOCKER_MANIFEST,
    MAXIMUM_BLOB_BYTES,
    OCI_INDEX,
    OCI_MANIFEST,
    Index,
    Manifest,
    choose_image,
    machine_platform,
    parse_manifest,
)

BLOB = {"mediaType": "x", "digest": f"sha256:{'a' * 64}", "size": 3}
IMAGE: dict[str, Any] = {"schemaVersion": 2, "config": BLOB, "layers": [BLOB]}
LIST: dict[str, Any] = {"schemaVersion": 2, "manifests": [BLOB]}


def read(document: dict[str, Any], media_type: str | None = None) -> Manifest | Index:
    return parse_manifest(json.dumps(document).encode(), media_type, "the manifest")


def test_both_kinds_are_told_apart() -> None:
    assert isinstance(read(IMAGE, OCI_MANIFEST), Manifest)
    assert isinstance(read(IMAGE, DOCKER_MANIFEST), Manifest)
    assert isinstance(read(LIST, OCI_INDEX), Index)
    # Some registries say nothing useful.
    assert isinstance(read(IMAGE, "application/json"), Manifest)


@pytest.mark.parametrize(
    ("document", "media_type"),
    [
        ({**IMAGE, "manifests": []}, None),
        ({"schemaVersion": 2}, None),
        (IMAGE, OCI_INDEX),
        (LIST, OCI_MANIFEST),
        ({**IMAGE, "mediaType": OCI_INDEX}, None),
        ({**IMAGE, "mediaType": DOCKER_MANIFEST}, OCI_MANIFEST),
        ({**IMAGE, "schemaVersion": 1}, None),
        ({**IMAGE, "layers": "x"}, None),
        ({**IMAGE, "layers": [BLOB] * 300}, None),
        ({**IMAGE, "config": None}, None),
        ({**IMAGE, "layers": [{**BLOB, "size": -1}]}, None),
        ({**IMAGE, "layers": [{**BLOB, "size": True}]}, None),
        ({**IMAGE, "layers": [{**BLOB, "size": "3"}]}, None),
        ({**IMAGE, "layers": [{**BLOB, "size": MAXIMUM_BLOB_BYTES + 1}]}, None),
        ({**IMAGE, "layers": [{**BLOB, "digest": "sha256:../../etc/passwd"}]}, None),
        ({**IMAGE, "layers": [{**BLOB, "digest": f"md5:{'a' * 32}"}]}, None),
        ({**LIST, "manifests": [BLOB] * 2000}, None),
    ],
)
def test_what_is_wrong_or_ambiguous_is_refused(
    document: dict[str, Any], media_type: str | None
) -> None:
    with pytest.raises(ImageRefused):
        read(document, media_type)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b"\xff\xfe{}",
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "b": 2}}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b" " * (MAXIMUM_DOCUMENT_BYTES + 1),
        b'{"a": ' + b"9" * 10_000 + b"}",
    ],
)
def test_a_document_that_harms_readers_is_refused(data: bytes) -> None:
    with pytest.raises(ImageRefused):
        parse_document(data, "it")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "layers",
                        "config",
                        "manifests",
                        "digest",
                        "size",
                        "mediaType",
                        "platform",
                        "x",
                    ]
                ),
                inner,
            )
        ),
    )
)
def test_any_json_is_a_manifest_or_refused(value: Any) -> None:
    document = {"schemaVersion": 2, **(value if isinstance(value, dict) else {"layers": value})}
    try:
        parse_manifest(json.dumps(document).encode(), None, "it")
    except ImageRefused:
        return


def test_the_image_for_this_machine_is_chosen() -> None:
    system, architecture = machine_platform()
    here = {**BLOB, "platform": {"os": system, "architecture": architecture}}
    other = {**BLOB, "digest": f"sha256:{'b' * 64}", "platform": {"os": "x", "architecture": "y"}}
    unsaid = {**BLOB, "digest": f"sha256:{'c' * 64}"}
    found = read({**LIST, "manifests": [other, here, unsaid]})
    assert isinstance(found, Index)
    assert choose_image(found, "it").digest == BLOB["digest"]
    alone = read({**LIST, "manifests": [unsaid]})
    assert isinstance(alone, Index) and choose_image(alone, "it").digest == unsaid["digest"]
    for entries in ([other], [other, unsaid], []):
        lacking = read({**LIST, "manifests": entries})
        assert isinstance(lacking, Index)
        with pytest.raises(ImageRefused, match="no image for"):
            choose_image(lacking, "it")
