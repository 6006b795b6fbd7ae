"""What the tools about state do: snapshot, snapshots, rewind and diff."""

from __future__ import annotations

from cloister.mcp import arguments as ask
from cloister.mcp import history
from cloister.mcp import results as told
from cloister.mcp.commands import Caller
from cloister.mcp.desk import Desk
from cloister.mcp.tool import Told


async def snapshot(desk: Desk, given: ask.SnapshotArguments, caller: Caller) -> Told:
    """Save what is on the disk now."""
    taken = history.moment(await history.take(desk, given.name), desk)
    return Told(told.SnapshotAnswer(snapshot=taken), f"saved as {taken.name or taken.id}")


async def snapshots(desk: Desk, given: ask.SnapshotsArguments, caller: Caller) -> Told:
    """Return what can be gone back to."""
    sandbox = await desk.sandbox()
    known = [history.moment(each, desk) for each in await sandbox.snapshots()]
    lines = [f"{each.id}  {each.name or each.command or ''}".rstrip() for each in known]
    return Told(told.SnapshotsAnswer(snapshots=known), "\n".join(lines) or "there are none yet")


async def rewind(desk: Desk, given: ask.RewindArguments, caller: Caller) -> Told:
    """Make the disk what it was; commands end."""
    sandbox = await desk.sandbox()
    target = await history.find(desk, given.to)
    back = history.moment(await sandbox.rewind(target), desk)
    return Told(
        told.SnapshotAnswer(snapshot=back),
        f"the disk is again what it was at {back.name or back.id}; commands that ran have ended",
    )


async def diff(desk: Desk, given: ask.DiffArguments, caller: Caller) -> Told:
    """Return what changed."""
    sandbox, path = await desk.sandbox(), await desk.resolve(given.path)
    earlier = None if given.since is None else await history.find(desk, given.since)
    found, more = await history.changes(sandbox, path, earlier)
    text = "\n".join(f"{each.kind[0].upper()} {each.path}" for each in found) or "nothing changed"
    if more:
        text += "\n[there is more; name a smaller path]"
    patch = None
    if given.patch and found:
        patch = await history.patch_text(sandbox, path, earlier)
        text = f"{text}\n\n{patch}"
    return Told(told.DiffAnswer(changes=found, truncated=more, patch=patch), text)
