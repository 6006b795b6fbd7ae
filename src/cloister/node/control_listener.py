"""The side that runs a kept sandbox: takes requests of other processes of the same user."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cloister.errors import CloisterError, RequestError, Unsupported
from cloister.model import quote
from cloister.model.approvals import Answer, Question
from cloister.node.control_channel import (
    VERSION,
    Channel,
    ChannelClosed,
    close_all,
    describe_error,
)
from cloister.node.control_compared import pack_compared
from cloister.node.control_place import listen_at, place_of

if TYPE_CHECKING:
    from cloister.node.control_exec import Running
    from cloister.store import Snapshot
    from cloister.store.changes import Owners, Skeleton, Stratum

# From being connected to having said what is wanted.
_REQUEST_S = 10.0
_MOST_PEERS = 64


class Controlled(Protocol):
    """What can be done to a sandbox from another process."""

    @property
    def id(self) -> str: ...
    @property
    def is_paused(self) -> bool: ...
    @property
    def host_pids(self) -> tuple[int, ...]: ...
    async def snapshot(self, name: str | None = None, *, memory: bool = False) -> Snapshot: ...
    async def pause_to_disk(self) -> Snapshot: ...
    async def rewind(self, to: str | int) -> Snapshot: ...
    async def pause(self) -> None: ...
    async def resume(self) -> None: ...
    async def renew_secrets(self) -> None: ...
    async def stop(self) -> None: ...
    async def end_step(self, command: str | Sequence[str | bytes]) -> None: ...
    async def ask(self, question: Question) -> Answer: ...
    async def compared(self) -> tuple[tuple[Stratum, ...], Skeleton, Owners]: ...
    async def start(
        self,
        command: str | Sequence[str | bytes],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | str | None = None,
        pty: tuple[int, int] | bool = False,
        stdin: bool = False,
    ) -> Running: ...
    def enter(self) -> None: ...
    def leave(self) -> None: ...


class Listener:
    """Answers requests for one kept sandbox until it is closed."""

    def __init__(self, sandbox: Controlled, end: socket.socket, place: Path) -> None:
        self._sandbox = sandbox
        self._end = end
        self._place = place
        self._began_at = time.time()
        self._loop = asyncio.get_running_loop()
        self._peers: set[asyncio.Task[None]] = set()
        self._loop.add_reader(end.fileno(), self._accept)

    @classmethod
    async def open(cls, sandbox: Controlled, state: Path, name: str) -> Listener:
        """Listen for the kept sandbox of that name, whose lock this process holds."""
        place = await asyncio.to_thread(place_of, state, name)
        return cls(sandbox, await asyncio.to_thread(listen_at, place), place)

    def close(self) -> None:
        """Take no more requests; those that are being answered still are."""
        if self._end.fileno() < 0:
            return
        self._loop.remove_reader(self._end.fileno())
        self._end.close()
        self._place.unlink(missing_ok=True)

    async def wait_answered(self) -> None:
        """Wait until every request that was taken has its answer."""
        while self._peers:
            await asyncio.wait(self._peers)

    def _accept(self) -> None:
        try:
            end, _ = self._end.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        if len(self._peers) >= _MOST_PEERS:
            end.close()
            return
        peer = self._loop.create_task(self._serve(Channel(end)))
        self._peers.add(peer)
        peer.add_done_callback(self._peers.discard)

    async def _serve(self, channel: Channel) -> None:
        try:
            await self._answer(channel)
        except ChannelClosed:
            # They have gone, and nobody is left to be told.
            return
        except Exception as error:
            with contextlib.suppress(CloisterError):
                await channel.send({"error": describe_error(error)})
        finally:
            channel.close()

    async def _answer(self, channel: Channel) -> None:
        try:
            request, descriptors = await asyncio.wait_for(channel.receive(), _REQUEST_S)
        except TimeoutError:
            raise RequestError(f"nothing was asked for within {_REQUEST_S:g} s") from None
        try:
            _require_same_user(channel)
            action = _parse_request(request)
            if action == "exec":
                from cloister.node.control_exec import serve_exec

                passed, descriptors = descriptors, []
                await serve_exec(self._sandbox, channel, request, passed)
                return
            await channel.send({"ok": await self._actions[action](self, request)})
        finally:
            close_all(descriptors)

    async def _describe(self, request: dict[str, Any]) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "sandbox": self._sandbox.id,
            "began_at": self._began_at,
            "paused": self._sandbox.is_paused,
            # The guest itself is a process too, and not one of the caller's.
            "processes": max(0, len(self._sandbox.host_pids) - 1),
        }

    async def _snapshot(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request.get("name")
        if name is not None and not isinstance(name, str):
            raise RequestError(f"the name of a snapshot is {quote(name)}; write text")
        memory = request.get("memory")
        if not isinstance(memory, bool):
            raise RequestError(f"memory is {quote(memory)}; write true or false")
        return {"snapshot": (await self._sandbox.snapshot(name, memory=memory)).id}

    async def _sleep(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"snapshot": (await self._sandbox.pause_to_disk()).id}

    async def _rewind(self, request: dict[str, Any]) -> dict[str, Any]:
        to = request.get("to")
        if isinstance(to, bool) or not isinstance(to, str | int):
            raise RequestError(f"rewind to {quote(to)}; write a name or the number of a step")
        return {"snapshot": (await self._sandbox.rewind(to)).id}

    async def _compare(self, request: dict[str, Any]) -> dict[str, Any]:
        return pack_compared(await self._sandbox.compared())

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            question = Question.from_dict(request["question"])
        except (KeyError, TypeError, ValueError):
            raise RequestError("a question that is none") from None
        if question.kind not in ("apply", "export"):
            # What leaves by the network is asked for by the gateway alone.
            raise RequestError(f"a question of kind {quote(question.kind)} is not asked from here")
        return (await self._sandbox.ask(question)).as_dict()

    async def _pause(self, request: dict[str, Any]) -> dict[str, Any]:
        await self._sandbox.pause()
        return {}

    async def _resume(self, request: dict[str, Any]) -> dict[str, Any]:
        await self._sandbox.resume()
        return {}

    async def _renew(self, request: dict[str, Any]) -> dict[str, Any]:
        await self._sandbox.renew_secrets()
        return {}

    async def _stop(self, request: dict[str, Any]) -> dict[str, Any]:
        await self._sandbox.stop()
        return {}

    _Action = Callable[["Listener", dict[str, Any]], Awaitable[dict[str, Any]]]
    _actions: Mapping[str, _Action] = {
        "describe": _describe,
        "snapshot": _snapshot,
        "rewind": _rewind,
        "compare": _compare,
        "ask": _ask,
        "pause": _pause,
        "sleep": _sleep,
        "resume": _resume,
        "renew": _renew,
        "stop": _stop,
    }


def _require_same_user(channel: Channel) -> None:
    _, uid = channel.peer
    if uid not in (0, os.geteuid()):
        raise Unsupported("this sandbox belongs to another user; run the command as that one")


def _parse_request(request: dict[str, Any]) -> str:
    if request.get("version") != VERSION:
        raise Unsupported(
            f"a request of version {quote(request.get('version'))}; this process speaks {VERSION}: "
            "stop the sandbox where it runs, and start it again with one version of cloister"
        )
    action = request.get("do")
    if not isinstance(action, str) or action not in (*Listener._actions, "exec"):
        raise RequestError(f"no request {quote(action)}")
    return action
