"""New sandboxes from a snapshot: each with an identity and a disk of its own."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from cloister.errors import GuestGone, RequestError
from cloister.model import quote
from cloister.node import Node, open_store
from cloister.node.remembered import unsealed
from cloister.policy import Policy, read_policy

if TYPE_CHECKING:
    from cloister.runtime.memory import Memory
    from cloister.sandbox.fork_ahead import BeginAnother
    from cloister.store import Disk, Snapshot


class Forked(Protocol):
    """What a fork needs of a sandbox."""

    def stand_on(self, snapshot: Snapshot) -> None: ...
    def remember(
        self, memory: Memory, paused: str | None = None, disk: Disk | None = None
    ) -> None: ...
    def begin_another(self, base: Snapshot) -> BeginAnother | None: ...
    async def open(self) -> Self: ...
    async def stop(self) -> None: ...


S = TypeVar("S", bound=Forked)


class Forks(Generic[S]):
    """Await it for a list of running sandboxes, or use it as `async with`, which ends them."""

    def __init__(self, start: Callable[[], Coroutine[Any, Any, list[S]]]) -> None:
        self._start = start
        self._running: list[S] = []

    def __await__(self) -> Generator[Any, None, list[S]]:
        return self._start().__await__()

    async def __aenter__(self) -> list[S]:
        self._running = await self._start()
        return self._running

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await stop_all(self._running)


async def fork(
    make: Callable[..., S],
    snapshot: Snapshot | str,
    count: int,
    grants: bool,
    changes: dict[str, Any],
) -> list[S]:
    """Start `count` sandboxes from one snapshot."""
    if count > 1 and changes.get("keep") is not None:
        raise RequestError("several forks cannot be kept under one name; fork one at a time")
    base, has_memory = await _find(snapshot)
    # Or a table of secrets of its own, as the constructor takes it.
    with_secrets = changes.get("secrets") is True
    if with_secrets:
        changes = {name: value for name, value in changes.items() if name != "secrets"}
    if with_secrets and not grants:
        raise RequestError("secrets go nowhere without a way out; say grants=True too")
    policy = _policy_of(base.id, base.policy, grants, with_secrets)
    if not has_memory:
        return await open_all([_open(make, policy, base, changes) for _ in range(count)])
    _require_same(base, policy, changes)
    # Imported when needed: most forks begin anew.
    from cloister.sandbox.fork_ahead import kind_of

    kind = kind_of(base, policy, changes) if count == 1 else None
    ahead = Node.current().ahead
    opened = None if kind is None else await _open_standing(make, policy, base, changes, kind)
    if opened is None:
        async with unsealed(base, policy) as memory:
            openings = [_open(make, policy, base, changes, memory) for _ in range(count)]
            opened = await open_all(openings)
    begin = None if kind is None else opened[0].begin_another(base)
    if begin is not None:
        ahead.used(kind, begin)
    return opened


async def _open_standing(
    make: Callable[..., S],
    policy: Policy,
    base: Snapshot,
    changes: dict[str, Any],
    kind: tuple[str, Policy],
) -> list[S] | None:
    """Open the one that was begun ahead, if there is one."""
    from cloister.sandbox.fork_ahead import StandingFork

    standing = await Node.current().ahead.take(kind)
    if not isinstance(standing, StandingFork):
        return None
    sandbox = make(policy, **changes)
    sandbox.stand_on(base)
    sandbox.remember(standing.memory, disk=standing.disk)
    try:
        return [await sandbox.open()]
    except GuestGone:
        # It ended in the moment it was taken: the next is begun as if there had been none.
        return None


def _require_same(base: Snapshot, policy: Policy, changes: dict[str, Any]) -> None:
    """Refuse what running programs would have to take without having been started for it."""
    before = read_policy(json.loads(base.policy), f"snapshot {base.id}")
    others = sorted(changes.keys() - {"keep", "label", "approve"})
    if others:
        raise RequestError(
            f"forks of {base.id} go on with its programs, which keep what they were started with; "
            f"leave {others[0]} out, or fork a snapshot without memory"
        )
    if (before.mounts, before.volumes, before.egress) != (
        policy.mounts,
        policy.volumes,
        policy.egress,
    ):
        raise RequestError(
            f"forks of {base.id} go on with its programs, which have its host directories, volumes "
            "and egress; say grants=True, or fork a snapshot without memory"
        )


async def resume(make: Callable[..., S], name: str, changes: dict[str, Any]) -> S:
    """Start the kept sandbox of that name from the memory it was paused with."""
    store = await open_store()
    paused = await asyncio.to_thread(store.memories.paused, name)
    if paused is None:
        raise RequestError(
            f"{quote(name)} is not paused on the disk; open it with keep={quote(name)}"
        )
    base = await asyncio.to_thread(store.snapshots.find, paused)
    kept = await asyncio.to_thread(store.kept.find, name)
    policy = read_policy(json.loads(kept.policy), f"kept sandbox {name}")
    async with unsealed(base, policy) as memory:
        sandbox = make(keep=name, **changes)
        sandbox.remember(memory, paused)
        return await sandbox.open()


# Reading a policy takes as long as a fifth of a start, and forks of one snapshot are many.
@functools.lru_cache(maxsize=64)
def _policy_of(id: str, text: str, grants: bool, with_secrets: bool) -> Policy:
    policy = read_policy(json.loads(text), f"snapshot {id}")
    if not grants:
        return policy.replace(mounts=(), volumes=(), egress=None, secrets=())
    return policy if with_secrets else policy.replace(secrets=())


async def _find(snapshot: Snapshot | str) -> tuple[Snapshot, bool]:
    """Return the snapshot, and whether its memory was saved with it."""
    store = await open_store()
    # What a caller holds may have been removed, or never have been there: the records know.
    which = snapshot if isinstance(snapshot, str) else snapshot.id

    # Both in one thread: the way there and back takes as long as either.
    def look() -> tuple[Snapshot, bool]:
        found = store.snapshots.find(which)
        return found, store.memories.has(found.id)

    return await asyncio.to_thread(look)


async def _open(
    make: Callable[..., S],
    policy: Policy,
    base: Snapshot,
    changes: dict[str, Any],
    memory: Memory | None = None,
) -> S:
    sandbox = make(policy, **changes)
    sandbox.stand_on(base)
    if memory is not None:
        sandbox.remember(memory)
    return await sandbox.open()


def require_count(count: object) -> int:
    """Return how many forks to make."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 10_000:
        raise RequestError(f"count is {quote(count)}; write a whole number from 1 to 10000")
    return count


async def open_all(openings: list[Coroutine[Any, Any, S]]) -> list[S]:
    """Open all of them at once; if one fails, those that were opened are ended."""
    outcomes = await asyncio.gather(*openings, return_exceptions=True)
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    opened = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    if failures:
        await stop_all(opened)
        raise failures[0]
    return opened


async def stop_all(sandboxes: list[S]) -> None:
    """End all of them at once."""
    await asyncio.gather(*(sandbox.stop() for sandbox in sandboxes))
