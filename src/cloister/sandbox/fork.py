"""New sandboxes from a snapshot: each with an identity and a disk of its own."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from cloister.errors import RequestError
from cloister.model import quote
from cloister.node import open_store
from cloister.policy import Policy, read_policy

if TYPE_CHECKING:
    from cloister.store import Snapshot


class Forked(Protocol):
    """What a fork needs of a sandbox."""

    def stand_on(self, snapshot: Snapshot) -> None: ...
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
    base = await _find(snapshot)
    # Or a table of secrets of its own, as the constructor takes it.
    with_secrets = changes.get("secrets") is True
    if with_secrets:
        changes = {name: value for name, value in changes.items() if name != "secrets"}
    if with_secrets and not grants:
        raise RequestError("secrets go nowhere without a way out; say grants=True too")
    policy = _policy_of(base.id, base.policy, grants, with_secrets)
    return await open_all([_open(make, policy, base, changes) for _ in range(count)])


# Reading a policy takes as long as a fifth of a start, and forks of one snapshot are many.
@functools.lru_cache(maxsize=64)
def _policy_of(id: str, text: str, grants: bool, with_secrets: bool) -> Policy:
    policy = read_policy(json.loads(text), f"snapshot {id}")
    if not grants:
        return policy.replace(mounts=(), volumes=(), egress=None, secrets=())
    return policy if with_secrets else policy.replace(secrets=())


async def _find(snapshot: Snapshot | str) -> Snapshot:
    store = await open_store()
    # What a caller holds may have been removed, or never have been there: the records know.
    which = snapshot if isinstance(snapshot, str) else snapshot.id
    return await asyncio.to_thread(store.snapshots.find, which)


async def _open(
    make: Callable[..., S], policy: Policy, base: Snapshot, changes: dict[str, Any]
) -> S:
    sandbox = make(policy, **changes)
    sandbox.stand_on(base)
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
