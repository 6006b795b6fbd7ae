"""The images that are here, by name and by digest, and the way new ones come in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from cloister.errors import ImageRefused, NotFound, RequestError
from cloister.image.accounts import find_user
from cloister.image.arrival import THREADS, Arrival, Unpack
from cloister.image.config import ImageConfig, parse_config
from cloister.image.facts import LayerFacts
from cloister.image.image import Image, ImageFacts, read_image_facts
from cloister.image.progress import OnProgress, Reporter
from cloister.image.reference import parse_image_name, split_pin
from cloister.image.source import Resolved, Source
from cloister.model import User, quote
from cloister.store import ImageRecord, Store

_SCHEME = "docker://"
_LATEST = ":latest"


class Library:
    """The images of a store. All but `add` block, for no longer than a look at the records."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(
        self,
        source: Source,
        *,
        unpack: Unpack,
        name: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> Image:
        """Bring an image here and give it a name, its own unless another is given.

        Layers that are here already are not fetched; of several that bring the same layer at the
        same time, in this process or in others, one does and the others wait.
        """
        given = None if name is None else parse_image_name(name)
        reporter = Reporter(on_progress)
        adding = asyncio.ensure_future(self._add(source, unpack, given, reporter))
        try:
            return await asyncio.shield(adding)
        except asyncio.CancelledError:
            # Threads are told first: what is cancelled waits for the thread it has at work.
            reporter.stop()
            source.close()
            adding.cancel()
            await asyncio.wait([adding])
            raise

    async def _add(
        self, source: Source, unpack: Unpack, name: str | None, reporter: Reporter
    ) -> Image:
        # Threads of its own: those that wait for another's layer must not hold up the other.
        executor = ThreadPoolExecutor(THREADS, thread_name_prefix="image")
        loop = asyncio.get_running_loop()
        try:
            resolved = await loop.run_in_executor(executor, source.resolve, reporter.tick)
            chosen = name or _own_name(resolved)
            _require_own_digest(chosen, resolved)
            config = parse_config(resolved.config)
            arrival = Arrival(self._store, unpack, reporter, executor)
            facts = await self._bring(resolved, config, arrival)
            return await loop.run_in_executor(
                executor, self._put, resolved, config, facts, chosen, source.origin
            )
        finally:
            source.close()
            executor.shutdown(wait=False)

    async def _bring(
        self, resolved: Resolved, config: ImageConfig, arrival: Arrival
    ) -> dict[str, LayerFacts]:
        if len(config.diff_ids) != len(resolved.layers):
            raise ImageRefused(
                f"the image has {len(resolved.layers)} layers, and its configuration "
                f"speaks of {len(config.diff_ids)}"
            )
        # One that stands in it twice is brought once.
        wanted = dict(zip(config.diff_ids, resolved.layers, strict=True))
        facts = await arrival.bring(list(wanted.items()))
        return dict(zip(wanted, facts, strict=True))

    def _put(
        self,
        resolved: Resolved,
        config: ImageConfig,
        facts: dict[str, LayerFacts],
        name: str,
        origin: str,
    ) -> Image:
        layers = effective_layers(config.diff_ids, facts)
        paths = [self._store.layers.path(layer) for layer in reversed(layers)]
        user: User | None = None if config.user is None else find_user(config.user, paths)
        kept = ImageFacts(
            env=config.env,
            user=user,
            workdir=config.workdir,
            entrypoint=config.entrypoint,
            cmd=config.cmd,
            notes=(*config.notes, *_remarks(facts.values())),
            origin=origin,
            platform="/".join(config.platform),
            content_bytes=sum(facts[layer].bytes for layer in layers),
            aliases=resolved.aliases,
        )
        record = self._store.images.put(resolved.digest, layers, kept.as_json(), name=name)
        return self._image(record)

    def find(self, reference: str) -> Image:
        """Return an image by NAME[:TAG], DIGEST or NAME@DIGEST, and hold it for this process.

        With a digest the name is not looked at: the digest says exactly which one is meant.
        """
        record = self._record(reference)
        self._store.images.hold(record.digest)
        return self._image(record)

    def _record(self, reference: str) -> ImageRecord:
        whole = reference.removeprefix(_SCHEME)
        name, digest = split_pin(whole)
        for candidate in (digest, whole) if digest else (name, name + _LATEST):
            try:
                return self._store.images.find(candidate)
            except NotFound:
                continue
        if digest is not None:
            # The digest of an index, which few ask for: no record is kept by it.
            for record in self._store.images.list():
                if digest in read_image_facts(record.facts).aliases:
                    return record
        raise NotFound(
            f"no image {quote(reference)} here; get it with `cloister image pull`, or make it with "
            "`cloister image build` or `import`",
            what=reference,
        )

    def list(self) -> list[Image]:
        """Return all images, oldest first."""
        return [self._image(record) for record in self._store.images.list()]

    def remove(self, reference: str) -> None:
        """Take a name away, or all names of a digest. What nothing stands on goes with `gc`."""
        name, digest = split_pin(reference.removeprefix(_SCHEME))
        names = self._record(reference).names
        if digest is None:
            names = (name if name in names else name + _LATEST,)
        for each in names:
            self._store.images.unname(each)

    def _image(self, record: ImageRecord) -> Image:
        facts = read_image_facts(record.facts)
        return Image(
            digest=record.digest,
            names=record.names,
            layers=tuple(self._store.layers.path(layer) for layer in reversed(record.layers)),
            layer_digests=record.layers,
            env=facts.env,
            user=facts.user,
            workdir=facts.workdir,
            entrypoint=facts.entrypoint,
            cmd=facts.cmd,
            notes=facts.notes,
            origin=facts.origin,
            platform=facts.platform,
            content_bytes=facts.content_bytes,
            created_at=record.created_at,
        )


def _own_name(resolved: Resolved) -> str:
    if resolved.name is None:
        raise RequestError("this image brings no name; give it one")
    return parse_image_name(resolved.name)


def _require_own_digest(name: str, resolved: Resolved) -> None:
    """Refuse a name that pins another image: whoever asks for that one would be given this."""
    _, digest = split_pin(name)
    if digest is not None and digest not in (resolved.digest, *resolved.aliases):
        raise ImageRefused(
            f"the image is to be called {quote(name)}, and has another digest; give it a name "
            "without one"
        )


def effective_layers(diff_ids: Sequence[str], facts: dict[str, LayerFacts]) -> list[str]:
    """Return the layers that an overlay needs, the lowest first.

    Of one that stands twice the upper is enough: all that the lower one shows or hides, the upper
    one does too. What is below a layer that hides everything is left out, as is what is empty.
    """
    kept: list[str] = []
    for diff_id in reversed(diff_ids):
        if diff_id not in kept and facts[diff_id].entries:
            kept.append(diff_id)
        if facts[diff_id].opaque_top:
            break
    # An image of nothing still is a root to stand on.
    return kept[::-1] or list(diff_ids[:1])


def _remarks(facts: Iterable[LayerFacts]) -> list[str]:
    """Say what of the layers did not arrive as it was."""
    found = list(facts)
    remarks = {
        "devices were left out": sum(each.devices for each in found),
        "extended attributes were left out": sum(each.attributes for each in found),
        "entries belong to users without an id here, and became root's": sum(
            each.strangers for each in found
        ),
    }
    return [f"{count} {words}" for words, count in remarks.items() if count]
