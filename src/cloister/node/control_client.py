"""The side that asks: reaches a kept sandbox that another process is running."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.errors import Busy, CloisterError, GuestGone, HostError
from cloister.model import Result, quote
from cloister.model.approvals import Answer, Question
from cloister.node.control_channel import VERSION, Channel, ChannelClosed, close_all, error_from
from cloister.node.control_compared import unpack_compared
from cloister.node.control_exec import unpack_result
from cloister.node.control_place import connect_to, place_of
from cloister.wire.streams import PipeIncoming, PipeOutgoing, open_pipe

if TYPE_CHECKING:
    from cloister.store.changes import Owners, Skeleton, Stratum

# What is quick for a process that listens at all; a snapshot or a rewind may take longer.
_QUICK_S = 10.0


@dataclass(frozen=True, slots=True)
class Described:
    """What the process that runs a sandbox says of it."""

    pid: int
    sandbox: str
    began_at: float
    paused: bool
    processes: int


class Remote:
    """A kept sandbox that another process is running; every request is a connection of its own."""

    def __init__(self, name: str, place: Path) -> None:
        self.name = name
        self._place = place

    async def describe(self) -> Described:
        """Return which process runs it, and how it is."""
        found = await self._ask({"do": "describe"}, _QUICK_S)
        try:
            return Described(**found)
        except TypeError as error:
            raise HostError(f"the process that runs {quote(self.name)} says {error}") from error

    async def snapshot(self, name: str | None, *, memory: bool = False) -> str:
        """Take a snapshot and return its id."""
        request = {"do": "snapshot", "name": name, "memory": memory}
        return str((await self._ask(request))["snapshot"])

    async def rewind(self, to: str | int) -> str:
        """Go back to a snapshot and return its id."""
        return str((await self._ask({"do": "rewind", "to": to}))["snapshot"])

    async def compared(self) -> tuple[tuple[Stratum, ...], Skeleton, Owners]:
        """Return what its disk is compared with, for this process to look at."""
        return unpack_compared(await self._ask({"do": "compare"}))

    async def ask(self, question: Question) -> Answer:
        """Have something answered by a person, and recorded there."""
        table = await self._ask({"do": "ask", "question": question.as_dict()})
        return Answer.from_dict(table)

    async def pause(self) -> None:
        """Stop every process inside."""
        await self._ask({"do": "pause"})

    async def pause_to_disk(self) -> None:
        """Save disk and memory, and end it."""
        await self._ask({"do": "sleep"})

    async def resume(self) -> None:
        """Let every process inside continue."""
        await self._ask({"do": "resume"})

    async def renew_secrets(self) -> None:
        """Have its secrets read from their sources again, by the process that runs it."""
        await self._ask({"do": "renew"})

    async def stop(self) -> None:
        """End it; returns when nothing of it runs."""
        try:
            await self._ask({"do": "stop"})
        except ChannelClosed:
            end = await asyncio.to_thread(connect_to, self._place)
            if end is not None:
                end.close()
                raise
            # Its process ended with it, before it could say so.
            return

    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | str | None = None,
        pty: tuple[int, int] | None = None,
        stdin: bool = False,
    ) -> RemoteProcess:
        """Start a program there, with pipes to here as its streams."""
        request = {
            "do": "exec",
            "command": command if isinstance(command, str) else list(command),
            "cwd": cwd,
            "env": None if env is None else dict(env),
            "user": user,
            "timeout": timeout,
            "pty": pty,
            "stdin": stdin,
        }
        channel = await self._connect()
        try:
            return await _start(channel, {"version": VERSION, **request})
        except BaseException:
            channel.close()
            raise

    async def _connect(self) -> Channel:
        end = await asyncio.to_thread(connect_to, self._place)
        if end is None:
            raise GuestGone(f"{quote(self.name)} has ended meanwhile", reason="stopped")
        return Channel(end)

    async def _ask(self, request: dict[str, Any], patience_s: float | None = None) -> Any:
        channel = await self._connect()
        try:
            await channel.send({"version": VERSION, **request})
            message, descriptors = await asyncio.wait_for(channel.receive(), patience_s)
            close_all(descriptors)
        except TimeoutError:
            pid, _ = channel.peer
            raise Busy(
                f"process {pid} runs {quote(self.name)} and does not answer; "
                f"wait for it, or end it with `kill {pid}`",
                holder=str(pid),
            ) from None
        finally:
            channel.close()
        if "ok" not in message:
            raise error_from(message.get("error"))
        return message["ok"]


async def find_remote(state: Path, name: str) -> Remote | None:
    """Return the kept sandbox if some process runs it and listens, else None."""
    place = await asyncio.to_thread(place_of, state, name)
    end = await asyncio.to_thread(connect_to, place)
    if end is None:
        return None
    end.close()
    return Remote(name, place)


async def _start(channel: Channel, request: dict[str, Any]) -> RemoteProcess:
    has_input = request["stdin"] or request["pty"] is not None
    theirs: list[int] = []
    ours: list[int] = []
    try:
        if has_input:
            read, write = open_pipe()
            theirs.append(read)
            ours.append(write)
        for _ in range(1 if request["pty"] is not None else 2):
            read, write = open_pipe()
            theirs.append(write)
            ours.append(read)
        await channel.send(request, theirs)
        close_all(theirs)
        theirs = []
        message, further = await channel.receive()
        close_all(further)
        if "started" not in message:
            raise error_from(message.get("error"))
    except BaseException:
        close_all((*theirs, *ours))
        raise
    writing = PipeOutgoing(ours.pop(0)) if has_input else None
    reading = [PipeIncoming(fd) for fd in ours]
    return RemoteProcess(channel, message["started"], writing, reading)


class RemoteProcess:
    """A program that another process runs for us in its sandbox."""

    def __init__(
        self,
        channel: Channel,
        started: dict[str, Any],
        stdin: PipeOutgoing | None,
        outputs: list[PipeIncoming],
    ) -> None:
        self.pid: int | None = started.get("pid")
        self.stdin = stdin
        self.stdout = outputs[0]
        self.stderr = outputs[1] if len(outputs) > 1 else None
        self._channel = channel
        self._said: set[asyncio.Task[None]] = set()
        self._ending = asyncio.get_running_loop().create_task(self._hear())

    async def wait(self) -> Result:
        """Wait for the end. Output is in the streams, not in the result."""
        return await asyncio.shield(self._ending)

    async def _hear(self) -> Result:
        try:
            message, descriptors = await self._channel.receive()
        except ChannelClosed as error:
            raise GuestGone(
                "the process that ran the sandbox has ended, and the sandbox with it",
                reason="owner",
            ) from error
        finally:
            self._channel.close()
        close_all(descriptors)
        if "ended" not in message:
            raise error_from(message.get("error"))
        return unpack_result(message["ended"])

    def signal(self, number: int) -> None:
        """Send a signal to the program's process group."""
        self._say({"signal": int(number)})

    def resize(self, rows: int, cols: int) -> None:
        """Tell the program that its terminal has another size."""
        self._say({"resize": [rows, cols]})

    def _say(self, message: dict[str, Any]) -> None:
        if self._ending.done():
            return
        saying = asyncio.get_running_loop().create_task(self._send(message))
        self._said.add(saying)
        saying.add_done_callback(self._said.discard)

    async def _send(self, message: dict[str, Any]) -> None:
        try:
            await self._channel.send(message)
        except (CloisterError, OSError):
            # It has ended: its result tells.
            return

    async def stop(self) -> None:
        """Let go of it: the process that runs it ends it."""
        self._ending.cancel()
        await asyncio.gather(self._ending, return_exceptions=True)
        self._channel.close()
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                stream.close()
