"""What a sandbox changed, as a patch or a tar that is streamed while it is made."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from cloister.errors import Unsupported
from cloister.store.changes import TarStyle, patch, since, write_tar
from cloister.store.stand_in import as_reader
from cloister.wire.streams import PipeIncoming, open_pipe

# Strata, skeleton and owners, as `Sandbox.compared` returns them.
Compared = tuple[Any, Any, Any]

FORMS = {"patch": "text/x-patch", "tar": "application/x-tar"}


async def exported(
    form: str, compared: Compared, below: str, benches: tuple[Path, ...] | None
) -> AsyncGenerator[bytes, None]:
    """Yield the export; whoever stops reading ends it."""
    read, write = open_pipe()
    task = asyncio.create_task(asyncio.to_thread(_write, write, form, compared, below, benches))
    source = PipeIncoming(read)
    try:
        async for chunk in source:
            yield bytes(chunk)
        await task
    finally:
        # A writer that nobody reads finds that out, and ends.
        source.close()
        with contextlib.suppress(BrokenPipeError):
            await asyncio.shield(task)


def _write(
    fd: int, form: str, compared: Compared, below: str, benches: tuple[Path, ...] | None
) -> None:
    try:
        as_reader(write_export, fd, form, compared, below, benches, keep=(fd,))
    except FileNotFoundError as error:
        raise Unsupported("the disk was changed while it was compared; ask again") from error
    finally:
        os.close(fd)


def write_export(
    fd: int, form: str, compared: Compared, below: str, benches: tuple[Path, ...] | None
) -> None:
    """Write it to a descriptor; for whoever may read the trees."""
    strata, skeleton, owners = compared
    trees = strata if benches is None else since(strata, benches)
    if form == "tar":
        write_tar(fd, trees, skeleton, owners, style=TarStyle.PLAIN, below=below)
        return
    with open(fd, "wb", closefd=False) as file:
        for piece in patch(trees, skeleton, owners, below=below, binary=True):
            file.write(piece)
