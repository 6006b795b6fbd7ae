"""Snapshots, going back, and what changed, for disks that have them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from cloister.mcp.desk import Desk
from cloister.mcp.failure import ToolFailure
from cloister.mcp.results import Difference, Moment
from cloister.model import quote
from cloister.model.changes import escape
from cloister.sandbox import Sandbox
from cloister.store.changes import patch, since
from cloister.store.snapshot import parse_snapshot_name
from cloister.store.stand_in import as_reader

if TYPE_CHECKING:
    from cloister.store import Snapshot
    from cloister.store.changes import Owners, Skeleton, Stratum

_MAXIMUM_CHANGES = 500
_PATCH_BYTES = 64 * 1024


def moment(snapshot: Snapshot, desk: Desk) -> Moment:
    """Return a snapshot as it is told."""
    named = next((name for name, id in desk.names.items() if id == snapshot.id), snapshot.name)
    return Moment(
        id=snapshot.id,
        name=named,
        created_at=snapshot.created_at,
        command=snapshot.command,
    )


async def take(desk: Desk, name: str | None) -> Snapshot:
    """Take a snapshot under a name that this sandbox has not used yet."""
    sandbox = await desk.sandbox()
    if name is None or desk.is_kept:
        return await sandbox.snapshot(name)
    parse_snapshot_name(name)
    if name in desk.names:
        raise ToolFailure(f"there is a snapshot {quote(name)} already; choose another name")
    taken = await sandbox.snapshot()
    desk.names[name] = taken.id
    return taken


async def find(desk: Desk, which: str) -> Snapshot:
    """Return the snapshot of this sandbox with that name or id."""
    known = await (await desk.sandbox()).snapshots()
    meant = desk.names.get(which, which)
    for snapshot in known:
        if meant in (snapshot.id, snapshot.name):
            return snapshot
    names = ", ".join(moment(each, desk).name or each.id for each in known[-8:]) or "none"
    raise ToolFailure(f"no snapshot {quote(which)}; there are: {names}")


async def changes(
    sandbox: Sandbox, below: str, earlier: Snapshot | None
) -> tuple[list[Difference], bool]:
    """Return what changed below a path, and whether there is more."""
    found: list[Difference] = []
    async for change in sandbox.diff(below, since=earlier):
        if len(found) == _MAXIMUM_CHANGES:
            return found, True
        found.append(
            Difference(kind=change.kind.value, type=change.type.value, path=escape(change.path))
        )
    return found, False


async def patch_text(sandbox: Sandbox, below: str, earlier: Snapshot | None) -> str:
    """Return the changed text as git shows it, up to a limit."""
    if os.environ.get("CLOISTER_URL"):
        data = await _patch_there(sandbox, below, earlier)
    else:
        async with sandbox.comparing(earlier) as (compared, benches):
            data = await asyncio.to_thread(_patch, *compared, below, benches)
    text = data[:_PATCH_BYTES].decode("utf-8", "replace")
    if len(data) > _PATCH_BYTES:
        text += "\n[there is more; name a smaller path]\n"
    return text


async def _patch_there(sandbox: Sandbox, below: str, earlier: Snapshot | None) -> bytes:
    from cloister.sandbox.remote import RemoteSandbox

    data = b""
    if isinstance(sandbox, RemoteSandbox):
        async with contextlib.aclosing(sandbox.export("patch", below, earlier)) as chunks:
            async for chunk in chunks:
                data += chunk
                if len(data) > _PATCH_BYTES:
                    break
    return data


def _patch(
    strata: tuple[Stratum, ...],
    skeleton: Skeleton,
    owners: Owners,
    below: str,
    benches: tuple[Path, ...] | None,
) -> bytes:
    fd = os.memfd_create("patch", os.MFD_CLOEXEC)
    try:
        as_reader(write_patch, fd, strata, skeleton, owners, below, benches, keep=(fd,))
        os.lseek(fd, 0, os.SEEK_SET)
        with open(fd, "rb", closefd=False) as file:
            return file.read(_PATCH_BYTES + 1)
    finally:
        os.close(fd)


def write_patch(
    fd: int,
    strata: tuple[Stratum, ...],
    skeleton: Skeleton,
    owners: Owners,
    below: str,
    benches: tuple[Path, ...] | None,
) -> None:
    """Write the patch until it is longer than anybody is shown. For whoever may read the trees."""
    compared = strata if benches is None else since(strata, benches)
    written = 0
    with open(fd, "wb", closefd=False) as file:
        for piece in patch(compared, skeleton, owners, below=below, binary=False):
            file.write(piece)
            written += len(piece)
            if written > _PATCH_BYTES:
                return
