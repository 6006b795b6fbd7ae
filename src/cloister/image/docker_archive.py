"""Images in a file that `docker save` wrote: a tar of a manifest, configurations and layers."""

from __future__ import annotations

from typing import Any

from cloister.errors import ImageRefused, NotFound
from cloister.image.archive_index import Place, find_places
from cloister.image.blobs import digest_of
from cloister.image.document import MAXIMUM_DOCUMENT_BYTES, parse_document, text_field, texts_field
from cloister.image.layout import open_file
from cloister.image.manifest import MAXIMUM_BLOB_BYTES, MAXIMUM_LAYERS
from cloister.image.reference import ArchiveReference
from cloister.image.source import Chunks, LayerSource, Resolved, Tick
from cloister.image.streams import CHUNK_BYTES
from cloister.model import quote

# A layer takes three entries in older archives.
_MAXIMUM_ENTRIES = 16 * MAXIMUM_LAYERS
_MANIFEST = "manifest.json"


class DockerArchiveSource:
    """One image of such a file. Its entries are only found here; layers are unpacked elsewhere."""

    def __init__(self, reference: ArchiveReference) -> None:
        self._reference = reference
        self._places: dict[str, Place] = {}

    @property
    def origin(self) -> str:
        """Where that is."""
        tag = "" if self._reference.tag is None else f":{self._reference.tag}"
        return f"docker-archive:{self._reference.file.absolute()}{tag}"

    def resolve(self, tick: Tick) -> Resolved:
        """Find the image."""
        with open_file(self._reference.file) as file:
            self._places = find_places(file, _MAXIMUM_ENTRIES, tick)
        entry = self._choose()
        config = self._small(text_field(entry, "Config", _MANIFEST) or "")
        layers = texts_field(entry, "Layers", _MANIFEST)
        if len(layers) > MAXIMUM_LAYERS:
            raise ImageRefused(f"the image has {len(layers)} layers; {MAXIMUM_LAYERS} may be")
        tags = texts_field(entry, "RepoTags", _MANIFEST)
        return Resolved(
            digest_of(config),
            config,
            [self._layer(name) for name in layers],
            name=self._reference.tag or (tags[0] if tags else None),
        )

    def close(self) -> None:
        """Nothing stays open."""

    def _choose(self) -> dict[str, Any]:
        # The list is the whole document: wrapped, it is read like all others.
        data = b'{"images":' + self._small(_MANIFEST) + b"}"
        images = parse_document(data, _MANIFEST).get("images")
        if not isinstance(images, list) or not all(isinstance(each, dict) for each in images):
            raise ImageRefused(f"{_MANIFEST} is no list of images")
        tag = self._reference.tag
        named = [
            each
            for each in images
            if tag is None or tag in texts_field(each, "RepoTags", _MANIFEST)
        ]
        if len(named) != 1:
            raise NotFound(
                f"{self._reference.file} has {len(named)} images"
                f"{'' if tag is None else f' called {quote(tag)}'}; say which by its tag",
                what=self.origin,
            )
        chosen: dict[str, Any] = named[0]
        return chosen

    def _place(self, name: str) -> Place:
        if name not in self._places:
            raise ImageRefused(f"{self._reference.file} has no file {quote(name)} in it")
        return self._places[name]

    def _small(self, name: str) -> bytes:
        place = self._place(name)
        if place.size_bytes > MAXIMUM_DOCUMENT_BYTES:
            raise ImageRefused(
                f"{quote(name)} has {place.size_bytes} bytes; the limit is {MAXIMUM_DOCUMENT_BYTES}"
            )
        return b"".join(self._read(place, lambda _: None))

    def _layer(self, name: str) -> LayerSource:
        place = self._place(name)
        if place.size_bytes > MAXIMUM_BLOB_BYTES:
            raise ImageRefused(
                f"a layer has {place.size_bytes} bytes; the limit is {MAXIMUM_BLOB_BYTES}"
            )
        # No digest is known of what is in the file; that of the unpacked layer is checked.
        return LayerSource(place.size_bytes, lambda tick: self._read(place, tick))

    def _read(self, place: Place, tick: Tick) -> Chunks:
        # Opened anew: layers are read at the same time.
        with open_file(self._reference.file) as file:
            file.seek(place.offset)
            left = place.size_bytes
            while left:
                chunk = file.read(min(CHUNK_BYTES, left))
                if not chunk:
                    raise ImageRefused(f"{self._reference.file} ends early")
                left -= len(chunk)
                tick(len(chunk))
                yield chunk
