"""Manifests and indexes, in the OCI form and in Docker's: which blobs make up an image."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from cloister.errors import ImageRefused
from cloister.image.document import digest_field, parse_document, text_field
from cloister.model import quote

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFEST_TYPES = (OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_INDEX)
_INDEX_TYPES = (OCI_INDEX, DOCKER_INDEX)

# Overlays take 500 directories; no tool makes images of more than 127.
MAXIMUM_LAYERS = 256
MAXIMUM_BLOB_BYTES = 32 * 2**30
_MAXIMUM_ENTRIES = 1024
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "riscv64": "riscv64", "ppc64le": "ppc64le"}


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A blob by its digest, with the size and kind it is said to have."""

    digest: str
    size_bytes: int
    media_type: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One image: its configuration and its layers, the lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One image of an index, and the machine it is for; None where that is not said."""

    descriptor: Descriptor
    platform: tuple[str, str] | None
    name: str | None


@dataclass(frozen=True, slots=True)
class Index:
    """The same image for several machines, or several images of a directory."""

    entries: tuple[IndexEntry, ...]


def parse_manifest(data: bytes, media_type: str | None, what: str) -> Manifest | Index:
    """Read a manifest or an index; what could be taken for both is refused (CVE-2021-41190)."""
    document = parse_document(data, what)
    own_type = text_field(document, "mediaType", what)
    if own_type is not None and media_type in MANIFEST_TYPES and own_type != media_type:
        raise ImageRefused(f"{what} is sent as {quote(media_type)} and says {quote(own_type)}")
    is_index, is_manifest = "manifests" in document, "layers" in document or "config" in document
    if is_index == is_manifest:
        raise ImageRefused(f"{what} is neither an image nor a list of images, or both at once")
    said = own_type or media_type
    if said in MANIFEST_TYPES and (said in _INDEX_TYPES) != is_index:
        raise ImageRefused(f"{what} is not what its type says: {quote(said)}")
    if document.get("schemaVersion") != 2:
        raise ImageRefused(f"{what} is of an old form; push it again with a current tool")
    return _index(document, what) if is_index else _manifest(document, what)


def _manifest(document: dict[str, Any], what: str) -> Manifest:
    layers = document.get("layers")
    if not isinstance(layers, list) or len(layers) > MAXIMUM_LAYERS:
        raise ImageRefused(f"{what} has no list of at most {MAXIMUM_LAYERS} layers")
    return Manifest(
        _descriptor(document.get("config"), f"the configuration in {what}"),
        tuple(_descriptor(layer, f"a layer in {what}") for layer in layers),
    )


def _index(document: dict[str, Any], what: str) -> Index:
    entries = document["manifests"]
    if not isinstance(entries, list) or len(entries) > _MAXIMUM_ENTRIES:
        raise ImageRefused(f"{what} has no list of at most {_MAXIMUM_ENTRIES} images")
    return Index(tuple(_entry(entry, what) for entry in entries))


def _entry(entry: object, what: str) -> IndexEntry:
    descriptor = _descriptor(entry, f"an image in {what}")
    platform, annotations = _object(entry, "platform"), _object(entry, "annotations")
    return IndexEntry(
        descriptor,
        None
        if platform is None
        else (
            text_field(platform, "os", what) or "unknown",
            text_field(platform, "architecture", what) or "unknown",
        ),
        None
        if annotations is None
        else text_field(annotations, "org.opencontainers.image.ref.name", what),
    )


def _object(entry: object, name: str) -> dict[str, Any] | None:
    value = entry.get(name) if isinstance(entry, dict) else None
    return value if isinstance(value, dict) else None


def _descriptor(value: object, what: str) -> Descriptor:
    if not isinstance(value, dict):
        raise ImageRefused(f"{what} is not described")
    size_bytes = value.get("size")
    if type(size_bytes) is not int or not 0 <= size_bytes <= MAXIMUM_BLOB_BYTES:
        raise ImageRefused(
            f"{what} has {quote(size_bytes)} bytes; the limit is {MAXIMUM_BLOB_BYTES}"
        )
    media_type = text_field(value, "mediaType", what) or ""
    return Descriptor(digest_field(value.get("digest"), what), size_bytes, media_type)


def machine_platform() -> tuple[str, str]:
    """Return what images for this machine call it."""
    machine = os.uname().machine
    return "linux", _ARCHITECTURES.get(machine, machine)


def choose_image(index: Index, what: str) -> Descriptor:
    """Return the image of an index that this machine can run; the first of several."""
    wanted = machine_platform()
    for entry in index.entries:
        if entry.platform == wanted or (entry.platform is None and len(index.entries) == 1):
            return entry.descriptor
    there = sorted({"/".join(entry.platform) for entry in index.entries if entry.platform})
    shown = ", ".join(quote(each) for each in there[:8]) or "none that says what it is for"
    raise ImageRefused(f"{what} has no image for {'/'.join(wanted)}; it has {shown}")
