"""What a sandbox changed, as a patch or a tar that is streamed while it is made."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cloister.errors import Exhausted, Unsupported
from cloister.policy import Effect
from cloister.sandbox.gates import pass_gate
from cloister.server.resident import Resident
from cloister.server.tenancy import TenantName
from cloister.store import Snapshot
from cloister.store.changes import TarStyle, patch, since, write_tar
from cloister.store.place import state_directory
from cloister.store.stand_in import as_reader
from cloister.wire.streams import PipeIncoming, open_pipe

# Strata, skeleton and owners, and where an earlier moment is, as `Sandbox.comparing` yields them.
Compared = tuple[tuple[Any, Any, Any], tuple[Path, ...] | None]

FORMS = {
    "patch": "text/x-patch",
    "tar": "application/x-tar",
    # What was changed as one layer of an image, which also says what is gone.
    "layer": "application/vnd.oci.image.layer.v1.tar",
}
_STYLES = {"tar": TarStyle.PLAIN, "layer": TarStyle.OCI}


# A writer waits for whoever reads: each has a thread of its own, and a tenant so many of them.
_MOST_AT_ONCE = 4
_PIECE_BYTES = 256 * 1024
_under_way: Counter[TenantName] = Counter()


def exported(
    resident: Resident, form: str, below: str, since: Snapshot | None
) -> AsyncGenerator[bytes, None]:
    """Yield the export; whoever stops reading ends it."""
    return piped(resident, since, write_export, form, below)


async def piped(
    resident: Resident, since: Snapshot | None, write: Callable[..., None], *arguments: object
) -> AsyncGenerator[bytes, None]:
    """Yield what a function writes of the trees to the descriptor it is given, with leave to read.

    Who has too many is refused before anything is made for another one: of a machine, that is a
    copy of its disk. The trees are there until the last byte.
    """
    tenant = resident.tenant
    if _under_way[tenant] >= _MOST_AT_ONCE:
        raise Exhausted(
            f"{_MOST_AT_ONCE} exports of this tenant are under way; read them first",
            limit="requests",
        )
    _under_way[tenant] += 1
    own = ThreadPoolExecutor(1, "export")
    try:
        async with (
            resident.sandbox.comparing(since) as compared,
            contextlib.aclosing(_chunks(own, write, (compared, *arguments))) as chunks,
        ):
            async for chunk in chunks:
                yield chunk
    finally:
        own.shutdown(wait=False)
        _under_way[tenant] -= 1


async def gated(
    resident: Resident, form: str, below: str, chunks: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Yield an export once its policy lets it leave; what is asked about is there whole."""
    policy = resident.sandbox.policy
    if policy.gates.export is Effect.ALLOW:
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                yield chunk
        return
    digest, size = hashlib.sha256(), 0
    with tempfile.TemporaryFile(dir=state_directory()) as file:
        async with contextlib.aclosing(chunks):
            if policy.gates.export is Effect.ASK:
                async for chunk in chunks:
                    await asyncio.to_thread(file.write, chunk)
                    digest.update(chunk)
                    size += len(chunk)
        told = digest.hexdigest()
        sizes = [("form", form), ("below", below), ("bytes", str(size)), ("sha-256", told)]
        subject = f"{resident.keep or resident.id} to a client of the server"
        await pass_gate(
            *("export", policy, resident.sandbox.ask), subject=subject, content=told, details=sizes
        )
        file.seek(0)
        while chunk := await asyncio.to_thread(file.read, _PIECE_BYTES):
            yield chunk


async def _chunks(
    own: ThreadPoolExecutor, write: Callable[..., None], arguments: tuple[object, ...]
) -> AsyncGenerator[bytes, None]:
    reading, writing = open_pipe()
    loop = asyncio.get_running_loop()
    task = loop.run_in_executor(own, _write, writing, write, arguments)
    source = PipeIncoming(reading)
    try:
        async for chunk in source:
            yield bytes(chunk)
        await task
    finally:
        # A writer that nobody reads finds that out, and ends.
        source.close()
        with contextlib.suppress(BrokenPipeError):
            await asyncio.shield(task)


def _write(fd: int, write: Callable[..., None], arguments: tuple[object, ...]) -> None:
    try:
        as_reader(write, fd, *arguments, keep=(fd,))
    except FileNotFoundError as error:
        raise Unsupported("the disk was changed while it was compared; ask again") from error
    finally:
        os.close(fd)


def write_export(fd: int, compared: Compared, form: str, below: str) -> None:
    """Write it to a descriptor; for whoever may read the trees."""
    (strata, skeleton, owners), benches = compared
    trees = strata if benches is None else since(strata, benches)
    if form in _STYLES:
        write_tar(fd, trees, skeleton, owners, style=_STYLES[form], below=below)
        return
    with open(fd, "wb", closefd=False) as file:
        for piece in patch(trees, skeleton, owners, below=below, binary=True):
            file.write(piece)
