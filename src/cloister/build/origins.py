"""COPY --from: files of another image, taken out of a sandbox of it."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from cloister.build.contents import SourceTree
from cloister.build.copying import Item
from cloister.build.draft import Draft
from cloister.build.ignore import compile_name, is_pattern
from cloister.build.spool import SPOOL_PREFIX, builds_directory
from cloister.build.workshop import Standing
from cloister.errors import NotFound
from cloister.model import Profile, quote
from cloister.policy import Policy
from cloister.sandbox import Kind, Sandbox
from cloister.store import Store

_MAXIMUM_BYTES = 32 * 2**30


@contextlib.asynccontextmanager
async def taken_from(
    origin: Draft, sources: Sequence[str], store: Store
) -> AsyncIterator[list[Item]]:
    """Copy the sources out of an image; they are gone again afterwards."""
    prefix = f"{SPOOL_PREFIX}{os.getpid()}-"
    spool = Path(tempfile.mkdtemp(prefix=prefix, dir=builds_directory(store)))
    policy = Policy(profile=Profile.ROOT)
    with contextlib.ExitStack() as contexts:
        try:
            items: list[Item] = []
            async with Standing(policy, store, origin.base, origin.layers) as sandbox:
                for source in sources:
                    for path in await _match(sandbox, source):
                        place = spool / str(len(items))
                        place.mkdir()
                        items.append(await _take(sandbox, path, place, contexts))
            yield items
        finally:
            shutil.rmtree(spool)


async def _take(sandbox: Sandbox, path: str, place: Path, contexts: contextlib.ExitStack) -> Item:
    found = await sandbox.files.stat(path)
    is_directory = found.kind is Kind.DIRECTORY
    name = "tree" if is_directory else posixpath.basename(path)
    await sandbox.files.copy_out(path, place / name, limit=_MAXIMUM_BYTES)
    context = contexts.enter_context(SourceTree(place / name if is_directory else place))
    return Item(context, "" if is_directory else name, is_directory)


async def _match(sandbox: Sandbox, source: str) -> list[str]:
    """Return the paths a source stands for; a link anywhere is followed inside."""
    found = ["/"]
    for name in posixpath.normpath(f"/{source}").strip("/").split("/"):
        if not name:
            continue
        if not is_pattern(name):
            found = [posixpath.join(above, name) for above in found]
            continue
        wanted = re.compile(compile_name(name), re.DOTALL)
        listed = []
        for above in found:
            with contextlib.suppress(NotFound):
                entries = await sandbox.files.list(above)
                listed += [
                    posixpath.join(above, each.name)
                    for each in entries
                    if wanted.fullmatch(each.name)
                ]
        found = listed
    kept = [path for path in found if await sandbox.files.exists(path)]
    if not kept:
        raise NotFound(f"{quote(source)} is not in that image", what=source)
    return sorted(kept)
