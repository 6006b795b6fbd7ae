"""What a server tells of a sandbox's state: snapshots, and what changed since one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from cloister.errors import Exhausted

if TYPE_CHECKING:
    from cloister.model.changes import Change
    from cloister.sandbox.remote import RemoteSandbox
    from cloister.store import Snapshot

_MOST_CHANGES = 10_000


class RemoteDifferences:
    """What a sandbox on a server changed: `await` it, or go through it with `async for`."""

    def __init__(self, sandbox: RemoteSandbox, below: str, since: str | None) -> None:
        self._sandbox = sandbox
        self._query = {"below": below, "since": since}

    def __await__(self) -> Generator[Any, None, tuple[Change, ...]]:
        return self._collect().__await__()

    async def _collect(self) -> tuple[Change, ...]:
        from cloister.model.changes import Change

        found = await self._sandbox.ask_server("GET", "/diff", None, **self._query)
        if not found["complete"]:
            raise Exhausted(
                f"more than {_MOST_CHANGES} paths changed; compare less at once", limit="output"
            )
        return tuple(Change.from_json(each) for each in found["changes"])

    async def __aiter__(self) -> AsyncIterator[Change]:
        for change in await self._collect():
            yield change


def which(snapshot: Snapshot | str | int) -> str | int:
    """Return what a server calls a snapshot."""
    return snapshot if isinstance(snapshot, str | int) else snapshot.id


def read_snapshot(found: dict[str, Any]) -> Snapshot:
    """Return the snapshot that a server told."""
    from cloister.store import Snapshot

    return Snapshot(
        id=found["id"],
        name=found.get("name"),
        sandbox=found["sandbox"],
        parent=found.get("parent"),
        created_at=datetime.fromisoformat(found["created_at"]).timestamp(),
        step=found.get("step"),
        command=found.get("command"),
        method=found["method"],
        image=found.get("image"),
        policy="",
        chain=(),
    )
