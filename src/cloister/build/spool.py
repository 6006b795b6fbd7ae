"""Layers on their way from a build into the store: a file first, then unpacked in a sandbox."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cloister.build.unpacking import unpack_layer
from cloister.image import LayerFacts, LayerSource
from cloister.image.arrival import THREADS, Arrival
from cloister.image.progress import Reporter
from cloister.image.streams import file_chunks
from cloister.store import Store

SPOOL_PREFIX = "spool-"


def builds_directory(store: Store) -> Path:
    """Return where builds keep what is theirs in the state directory."""
    directory = store.directory / "builds"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


@contextlib.contextmanager
def spool_file(store: Store) -> Iterator[Path]:
    """A file of the state directory that is gone afterwards, at the latest with the next build."""
    prefix = f"{SPOOL_PREFIX}{os.getpid()}-"
    handle, name = tempfile.mkstemp(prefix=prefix, dir=builds_directory(store))
    os.close(handle)
    try:
        yield Path(name)
    finally:
        os.unlink(name)


def sweep_spool(store: Store) -> None:
    """Remove the files of builds whose process is no more."""
    for path in builds_directory(store).glob(f"{SPOOL_PREFIX}*"):
        pid = path.name.removeprefix(SPOOL_PREFIX).partition("-")[0]
        if not pid.isdecimal() or not Path("/proc", pid).exists():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


async def store_layer(store: Store, tar: Path, digest: str) -> LayerFacts:
    """Unpack a tar into the store, by its digest, unless it is there already."""

    def chunks(tick: Callable[[int], None]) -> Generator[bytes, None, None]:
        with open(tar, "rb") as file:
            for chunk in file_chunks(file):
                tick(len(chunk))
                yield chunk

    executor = ThreadPoolExecutor(THREADS, thread_name_prefix="build")
    reporter = Reporter(None)
    try:
        source = LayerSource(tar.stat().st_size, chunks)
        (facts,) = await Arrival(store, unpack_layer, reporter, executor).bring([(digest, source)])
        return facts
    finally:
        reporter.stop()
        executor.shutdown(wait=False)
