"""Brings an image into a store from wherever a person says it is."""

from __future__ import annotations

from cloister.build.unpacking import unpack_layer
from cloister.image import Image, Library, OnProgress, Reference, open_source, parse_reference
from cloister.store import Store


async def pull_image(
    store: Store,
    reference: str | Reference,
    *,
    name: str | None = None,
    on_progress: OnProgress | None = None,
) -> Image:
    """Fetch an image, unpack its layers inside sandboxes, and give it a name.

    `reference` is docker://HOST/NAME:TAG, oci:DIRECTORY[:TAG], docker-archive:FILE or tar:FILE.
    Without `name` it gets the one it has where it comes from.
    """
    wanted = parse_reference(reference) if isinstance(reference, str) else reference
    source = open_source(wanted, store.directory)
    return await Library(store).add(source, unpack=unpack_layer, name=name, on_progress=on_progress)
