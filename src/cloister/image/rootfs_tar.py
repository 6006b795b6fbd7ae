"""A tar of a root filesystem as an image of one layer."""

from __future__ import annotations

import json
from pathlib import Path

from cloister.image.blobs import digest_of
from cloister.image.layout import open_file
from cloister.image.manifest import MAXIMUM_BLOB_BYTES, machine_platform
from cloister.image.source import Chunks, LayerSource, Resolved, Tick
from cloister.image.streams import CHUNK_BYTES, Digesting, decompressed


class TarSource:
    """One file. It is read twice: which layer it is must be known before it is unpacked."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @property
    def origin(self) -> str:
        """Where that is."""
        return f"tar:{self._file.absolute()}"

    def resolve(self, tick: Tick) -> Resolved:
        """Read all of it once, for its digest."""
        content = Digesting(decompressed(self._chunks(lambda _: tick(0)), MAXIMUM_BLOB_BYTES))
        for _ in content:
            continue
        config = make_config([content.digest])
        return Resolved(digest_of(config), config, [LayerSource(None, self._chunks)])

    def close(self) -> None:
        """Nothing stays open."""

    def _chunks(self, tick: Tick) -> Chunks:
        with open_file(self._file) as file:
            while chunk := file.read(CHUNK_BYTES):
                tick(len(chunk))
                yield chunk


def make_config(diff_ids: list[str], wishes: dict[str, object] | None = None) -> bytes:
    """Return the configuration of an image that had none; the same layers give the same bytes."""
    system, architecture = machine_platform()
    document: dict[str, object] = {
        "architecture": architecture,
        "os": system,
        "config": wishes or {},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
