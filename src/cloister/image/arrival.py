"""Layers on their way into the store: fetched, unfolded, unpacked, compared, and only then kept."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Protocol, TypeVar

from cloister.errors import ImageRefused
from cloister.image.facts import LayerFacts, parse_facts
from cloister.image.manifest import MAXIMUM_BLOB_BYTES
from cloister.image.progress import LayerReporter, Reporter, Stage
from cloister.image.source import LayerSource
from cloister.image.streams import Digesting, decompressed
from cloister.store import Staging, Store

_LAYERS_AT_ONCE = 3
# A layer needs one thread at a time; a thread that waits for another process holds up no other.
THREADS = _LAYERS_AT_ONCE + 1
_Result = TypeVar("_Result")


class Unpack(Protocol):
    """What makes a layer of an archive; `cloister.build.unpack_layer` is one."""

    async def __call__(
        self, directory: Path, archive: Iterator[bytes], *, executor: Executor | None = None
    ) -> LayerFacts:
        """Unpack `archive`, an uncompressed tar, into an empty directory."""


class Arrival:
    """The layers of one image."""

    def __init__(
        self, store: Store, unpack: Unpack, reporter: Reporter, executor: Executor
    ) -> None:
        self._store = store
        self._unpack = unpack
        self._reporter = reporter
        self._executor = executor
        self._room = asyncio.Semaphore(_LAYERS_AT_ONCE)

    async def bring(self, layers: list[tuple[str, LayerSource]]) -> list[LayerFacts]:
        """Return the facts of all, (digest unpacked, where to get it) each, when all are here."""
        tasks = [
            asyncio.ensure_future(self._one(index, len(layers), digest, source))
            for index, (digest, source) in enumerate(layers)
        ]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            # Nobody is left at work behind the caller, and no thread waits for more bytes.
            self._reporter.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _one(self, index: int, count: int, digest: str, source: LayerSource) -> LayerFacts:
        told = LayerReporter(self._reporter, index, count, digest, source.size_bytes)
        async with self._room:
            told.stage(Stage.WAITING)
            staging = await self._begin(digest)
            if staging is None:
                told.stage(Stage.PRESENT)
                return parse_facts(await self._run(self._store.layers.facts, digest))
            try:
                facts = await self._fill(staging, source, told)
                await self._run(staging.commit, facts.as_json())
            finally:
                # Nothing happens after a commit; otherwise nothing of it stays.
                await asyncio.shield(self._run(staging.abort))
            told.stage(Stage.DONE)
            return facts

    async def _begin(self, digest: str) -> Staging | None:
        """Get the layer's place to ourselves, or learn that somebody has brought it meanwhile."""
        beginning = asyncio.ensure_future(self._run(self._store.layers.begin, digest))
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            # The thread cannot be called back: what it gets is given up again.
            beginning.add_done_callback(_give_up)
            raise

    async def _fill(self, staging: Staging, source: LayerSource, told: LayerReporter) -> LayerFacts:
        with contextlib.closing(source.open(told.tick)) as chunks:
            content = Digesting(decompressed(chunks, MAXIMUM_BLOB_BYTES))
            facts = await self._unpack(staging.path, iter(content), executor=self._executor)
        if content.digest != staging.digest:
            raise ImageRefused(
                f"a layer is another than the image says: it is not {staging.digest}"
            )
        return facts

    async def _run(self, function: Callable[..., _Result], *arguments: object) -> _Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, function, *arguments)


def _give_up(beginning: asyncio.Future[Staging | None]) -> None:
    if not beginning.cancelled() and beginning.exception() is None:
        staging = beginning.result()
        if staging is not None:
            staging.abort()
