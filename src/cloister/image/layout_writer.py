"""Writes images into a directory of the OCI's form, for other tools to read."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import AlreadyExists
from cloister.image.blobs import digest_of
from cloister.image.document import parse_document
from cloister.image.layout import open_file
from cloister.image.manifest import OCI_INDEX, OCI_MANIFEST, Descriptor
from cloister.image.rootfs_tar import make_config

_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MARK = "oci-layout"
_MARK_TEXT = b'{"imageLayoutVersion":"1.0.0"}'
_REF_NAME = "org.opencontainers.image.ref.name"
# Fast, and within a few percent of the size of the slowest.
_LEVEL = 6


@dataclass(frozen=True, slots=True)
class WrittenLayer:
    """A layer in the directory: its blob, and the digest of the tar in it."""

    blob: Descriptor
    diff_id: str


class LayoutWriter:
    """A directory that images are written into. Nothing names a blob before it is whole."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._blobs = directory / "blobs" / "sha256"
        if directory.exists() and any(directory.iterdir()) and not (directory / _MARK).is_file():
            raise AlreadyExists(
                f"{directory} is there and no directory of images; name an empty one",
                what=str(directory),
            )
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._place(directory / _MARK, _MARK_TEXT)

    def add_layer(self, tar: Iterable[bytes]) -> WrittenLayer:
        """Write a layer from an uncompressed tar; the same tar gives the same blob."""
        plain = hashlib.sha256()
        with tempfile.NamedTemporaryFile(dir=self._directory, delete=False) as file:
            try:
                with gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as packed:
                    for chunk in tar:
                        plain.update(chunk)
                        packed.write(chunk)
                file.flush()
                blob = self._keep(Path(file.name), _LAYER)
            except BaseException:
                os.unlink(file.name)
                raise
        return WrittenLayer(blob, f"sha256:{plain.hexdigest()}")

    def add_image(
        self, tag: str, layers: Iterable[WrittenLayer], wishes: Mapping[str, object] | None = None
    ) -> str:
        """Write an image of layers, the lowest first, and return its digest.

        `wishes` is the `config` of its configuration: Env, User, WorkingDir, Entrypoint, Cmd. A
        tag that is there already comes to mean this image.
        """
        written = list(layers)
        config = self._add(make_config([each.diff_id for each in written], dict(wishes or {})))
        manifest = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": _described(Descriptor(config.digest, config.size_bytes, _CONFIG)),
            "layers": [_described(each.blob) for each in written],
        }
        blob = self._add(_bytes(manifest))
        entry = _described(Descriptor(blob.digest, blob.size_bytes, OCI_MANIFEST))
        self._name(tag, entry)
        return blob.digest

    def _name(self, tag: str, entry: dict[str, object]) -> None:
        path = self._directory / "index.json"
        entries = []
        if path.exists():
            with open_file(path) as file:
                known = parse_document(file.read(), "index.json").get("manifests", [])
            entries = [each for each in known if each.get("annotations", {}).get(_REF_NAME) != tag]
        entries.append({**entry, "annotations": {_REF_NAME: tag}})
        index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}
        self._place(path, _bytes(index))

    def _add(self, data: bytes) -> Descriptor:
        digest = digest_of(data)
        self._place(self._blobs / digest.partition(":")[2], data)
        return Descriptor(digest, len(data), "")

    def _place(self, path: Path, data: bytes) -> None:
        """Write beside it and rename: what reads it meanwhile sees the old or the new."""
        with tempfile.NamedTemporaryFile(dir=self._directory, delete=False) as file:
            file.write(data)
            os.fchmod(file.fileno(), 0o644)
        os.replace(file.name, path)

    def _keep(self, file: Path, media_type: str) -> Descriptor:
        with open(file, "rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
            size_bytes = os.fstat(opened.fileno()).st_size
        file.chmod(0o644)
        os.replace(file, self._blobs / digest)
        return Descriptor(f"sha256:{digest}", size_bytes, media_type)


def _described(blob: Descriptor) -> dict[str, object]:
    return {"mediaType": blob.media_type, "digest": blob.digest, "size": blob.size_bytes}


def _bytes(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
