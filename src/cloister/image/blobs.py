"""An image whose blobs are found by digest: the common half of registries and directories."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from cloister.errors import ImageRefused
from cloister.image.document import MAXIMUM_DOCUMENT_BYTES
from cloister.image.manifest import Descriptor, Index, Manifest, choose_image, parse_manifest
from cloister.image.source import Chunks, LayerSource, Resolved, Tick
from cloister.image.streams import verified

OpenBlob = Callable[[Descriptor, Tick], Iterator[bytes]]
# (digest or tag, tick) to (bytes, type as the place calls it).
GetManifest = Callable[[str], tuple[bytes, str | None]]


def resolve_blobs(
    reference: str, digest: str | None, manifest: GetManifest, blob: OpenBlob, tick: Tick
) -> Resolved:
    """Follow a reference to an image for this machine.

    `digest` is what was asked for, if that was a digest. Whatever is read is compared with the
    digest that led to it.
    """
    data, media_type = manifest(reference)
    own = digest_of(data, digest)
    if digest is not None and own != digest:
        raise ImageRefused(f"the manifest is another than was asked for: it is not {digest}")
    found = parse_manifest(data, media_type, "the manifest")
    aliases: tuple[str, ...] = ()
    if isinstance(found, Index):
        chosen = choose_image(found, "the index")
        aliases = (own,)
        data, media_type = manifest(chosen.digest)
        own = digest_of(data, chosen.digest)
        if own != chosen.digest or len(data) != chosen.size_bytes:
            raise ImageRefused(f"the manifest is another than its index says: {chosen.digest}")
        found = parse_manifest(data, media_type or chosen.media_type, "the manifest")
    if not isinstance(found, Manifest):
        raise ImageRefused("the index leads to another index; name the image itself by its digest")
    return Resolved(own, _config(found, blob, tick), _layers(found, blob), aliases)


def digest_of(data: bytes, like: str | None = None) -> str:
    """Return the digest of bytes, made with the algorithm of another digest."""
    algorithm = "sha256" if like is None else like.partition(":")[0]
    return f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}"


def _config(manifest: Manifest, blob: OpenBlob, tick: Tick) -> bytes:
    if manifest.config.size_bytes > MAXIMUM_DOCUMENT_BYTES:
        raise ImageRefused(
            f"the configuration has {manifest.config.size_bytes} bytes; "
            f"the limit is {MAXIMUM_DOCUMENT_BYTES}"
        )
    what = "the configuration of the image"
    return b"".join(verified(blob(manifest.config, tick), manifest.config, what))


def _layers(manifest: Manifest, blob: OpenBlob) -> list[LayerSource]:
    def opening(layer: Descriptor) -> Callable[[Tick], Chunks]:
        return lambda tick: verified(blob(layer, tick), layer, f"layer {layer.digest}")

    return [LayerSource(layer.size_bytes, opening(layer)) for layer in manifest.layers]
