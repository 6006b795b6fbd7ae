"""The owner's side of the gateway: starts it, tells it whom to serve, starts it again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloister.egress import control
from cloister.errors import HostError, Unsupported
from cloister.model import SandboxId
from cloister.node.gateway_words import Served, words_for
from cloister.node.held_questions import Ask, HeldQuestions
from cloister.node.traffic_log import TrafficLog
from cloister.policy import Policy
from cloister.runtime.doors import Doors, close_all

if TYPE_CHECKING:
    from cloister.node.provisions import Provisions

_NEEDED = ("dns", "h11")
_START_S = 30.0
# Between a death soon after a start and the next start; doubled each time, up to the last.
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 5.0
# One that has lived so long was well.
_LONG_LIFE_S = 30.0
_SETTLE_S = 1.0
# A gateway that does not take what is new for so long is ended, for it still serves by the old.
_CHANGE_S = 10.0
# A gateway that takes no word for so long serves nobody either.
_SEND_S = 2.0
_MAX_STDERR = 4096


@dataclass(frozen=True, slots=True)
class _Leaving:
    log: TrafficLog
    settled: asyncio.Future[None]


class GatewayKeeper:
    """One gateway process for all sandboxes of a node, made when the first of them needs it.

    Both have the doors. While no gateway lives, connections from inside wait or fail, and nothing
    leaves. `answers` are addresses of names, for trials, which have no name server.
    """

    def __init__(self, beside: GatewayKeeper | None = None) -> None:
        """Keep one; `beside` another it is one that reads requests too, and starts later."""
        self._beside = beside
        self._answers: Mapping[str, Sequence[str]] | None = None
        self._served: dict[SandboxId, Served] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._end: socket.socket | None = None
        self._ready: asyncio.Future[None] | None = None
        self._restarting: asyncio.Task[None] | None = None
        # Told when a process is started.
        self._another: asyncio.Future[None] | None = None
        self._numbers = itertools.count(1)
        self._leaving: dict[SandboxId, _Leaving] = {}
        self._questions = HeldQuestions(self._send)
        self._settling: dict[int, asyncio.Future[None]] = {}
        self._pause_s = _SHORTEST_PAUSE_S
        self._started_at = 0.0
        self._closed = False

    @property
    def answers(self) -> Mapping[str, Sequence[str]] | None:
        """Addresses of names that are not looked up."""
        return self._answers if self._beside is None else self._beside.answers

    @answers.setter
    def answers(self, names: Mapping[str, Sequence[str]] | None) -> None:
        self._answers = names

    @property
    def pid(self) -> int | None:
        """The process, if it runs."""
        return None if self._process is None else self._process.pid

    def begin(self) -> None:
        """Start the gateway if it does not run; `wait_ready` says what came of it."""
        # Whoever was closed and is used again has to be back when it is killed, as ever.
        self._closed = False
        if self._process is not None or self._restarting is not None:
            return
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise Unsupported(
                f"egress needs the Python package {missing[0]}; pip install 'cloister[egress]'"
            )
        self._start()

    async def wait_ready(self) -> None:
        """Wait until the gateway serves, or raise HostError."""
        if self._ready is None:
            raise HostError("the gateway has been ended")
        try:
            async with asyncio.timeout(_START_S):
                await asyncio.shield(self._ready)
        except TimeoutError:
            raise HostError(f"the gateway did not start within {_START_S:g} s") from None

    async def wait_other(self, pid: int | None) -> None:
        """Wait until another process than this one serves, which may not have been missed yet."""
        while self.pid in (None, pid):
            if self._another is None:
                self._another = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._another)
        await self.wait_ready()

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = control.pair()
        depth = () if self._beside is None else ("depth",)
        paths = os.pathsep.join(path for path in sys.path if path)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "cloister.egress", str(theirs.fileno()), *depth],
                pass_fds=(theirs.fileno(),),
                # Nothing of the owner's but where its modules are.
                env={"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8"},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise HostError(f"the gateway could not be started: {error}") from error
        finally:
            theirs.close()
        self._end = ours
        self._started_at = time.monotonic()
        if self._ready is None or self._ready.done():
            self._ready = loop.create_future()
        loop.add_reader(ours, self._on_frame)
        if self.answers is not None:
            names = {name: list(each) for name, each in self.answers.items()}
            self._send({"do": "answer", "names": names})
        for id, served in self._served.items():
            self._hand_over(id, served)
        _settle(self._another)
        self._another = None

    def serve(
        self,
        id: SandboxId,
        policy: Policy,
        doors: Doors,
        log: TrafficLog,
        ask: Ask | None = None,
        provisions: Provisions | None = None,
    ) -> None:
        """Hand the doors of a sandbox over. Nothing may have run inside before.

        `ask` has questions answered; without it, each is answered with no. `provisions` are
        what reading its requests needs.
        """
        served = self._served[id] = Served(policy, doors, log, ask, provisions)
        self._hand_over(id, served)

    async def change(self, id: SandboxId, **changes: Policy | Provisions) -> None:
        """Serve a sandbox anew by another `policy`, or with other `provisions`.

        What is open is cut, and may come again. Returns when nothing else is in force.
        """
        served = self._served.get(id)
        if served is None:
            raise HostError("it has no way out any more")
        self._served[id] = dataclasses.replace(served, **changes)  # type: ignore[arg-type]
        if self._end is not None:
            self._hand_over(id, self._served[id])
        if self._end is None:
            # Nothing leaves meanwhile, and the next one is told what is new only.
            return
        told, _ = await asyncio.wait([self._asked("settle", id)], timeout=_CHANGE_S)
        if not told:
            self._died()

    def _hand_over(self, id: SandboxId, served: Served) -> None:
        served.log.begin()
        frame, document = words_for(id, served)
        try:
            self._send(frame, (*served.doors.fds, *document))
        finally:
            close_all(document)

    async def settle(self, id: SandboxId) -> None:
        """Wait until all that has happened to a sandbox so far is in its log."""
        if id in self._leaving:
            settled = self._leaving[id].settled
        elif id in self._served and self._end is not None:
            settled = self._asked("settle", id)
        else:
            return
        # One that has died or has too much to do: then what is known has to do.
        await asyncio.wait([settled], timeout=_SETTLE_S)

    def forget(self, id: SandboxId) -> None:
        """Let a sandbox go; what it has open is reset. What is still told of it is heard."""
        served = self._served.pop(id, None)
        self._questions.withdraw(id)
        if served is not None and self._end is not None:
            settled = self._asked("forget", id)
            self._leaving[id] = _Leaving(served.log, settled)
            settled.add_done_callback(lambda _: self._leaving.pop(id, None))

    def _asked(self, what: str, id: SandboxId) -> asyncio.Future[None]:
        number = next(self._numbers)
        settled = self._settling[number] = asyncio.get_running_loop().create_future()
        self._send({"do": what, "sandbox": id, "number": number})
        return settled

    def _send(self, frame: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        if self._end is None:
            return
        try:
            # It reads as fast as it can; waiting here is what keeps the order.
            self._end.settimeout(_SEND_S)
            control.send(self._end, frame, fds)
            self._end.setblocking(False)
        except OSError:
            # Dead, or as good as that: another one is started, and told all of it again.
            self._died()

    def _log_of(self, id: SandboxId) -> TrafficLog | None:
        if id in self._served:
            return self._served[id].log
        leaving = self._leaving.get(id)
        return None if leaving is None else leaving.log

    def _on_frame(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._hear()

    def _hear(self) -> None:
        if self._end is None:
            return
        try:
            received = control.receive(self._end)
        except BlockingIOError:
            raise
        except (OSError, control.BadFrame):
            received = None
        if received is None:
            self._died()
            return
        frame, fds = received
        for fd in fds:
            os.close(fd)
        try:
            self._note(frame)
        except (KeyError, TypeError, ValueError):
            # Something has taken it over: what it says is worth nothing, and it serves no more.
            self._died()

    def _note(self, frame: Mapping[str, Any]) -> None:
        match frame["do"]:
            case "ready":
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(None)
            case "given":
                log = self._log_of(frame["sandbox"])
                if log is not None:
                    log.book[str(frame["name"])] = str(frame["address"])
            case "used":
                log = self._log_of(frame["sandbox"])
                if log is not None:
                    log.used = {str(name): int(count) for name, count in frame["used"].items()}
            case "ask":
                served = self._served.get(frame["sandbox"])
                if served is not None:
                    number, question = int(frame["number"]), frame["question"]
                    self._questions.ask(frame["sandbox"], number, question, served.ask)
            case "withdraw":
                self._questions.withdraw(frame["sandbox"], int(frame["number"]))
            case "events":
                for event in frame["events"]:
                    log = self._log_of(event["sandbox"])
                    if event["kind"] == "settled":
                        _settle(self._settling.pop(event["number"], None))
                    elif log is not None:
                        log.add(event)
                for id, count in frame["lost"].items():
                    log = self._log_of(id)
                    if log is not None:
                        log.lose(int(count))

    def _died(self) -> None:
        words = self._let_go(kill=True)
        if self._closed or self._ready is None:
            return
        if not self._ready.done():
            # Whoever waits for it is told, and tries again or does not.
            self._ready.set_exception(HostError(f"the gateway did not start: {words}"))
            self._ready.exception()
        elif self._restarting is None:
            self._restarting = asyncio.get_running_loop().create_task(self._restart())

    async def _restart(self) -> None:
        """Start another one: soon, but not in a circle that takes a processor of its own."""
        if time.monotonic() - self._started_at > _LONG_LIFE_S:
            self._pause_s = _SHORTEST_PAUSE_S
        while not self._closed:
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
            with contextlib.suppress(HostError):
                self._start()
                await self.wait_ready()
                break
        self._restarting = None

    def _let_go(self, *, kill: bool) -> str:
        """End the process; return its last words."""
        if self._end is not None:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._end)
            self._end.close()
            self._end = None
        self._questions.clear()
        while self._settling:
            _settle(self._settling.popitem()[1])
        process, self._process = self._process, None
        if process is None:
            return ""
        if kill:
            process.kill()
        process.wait()
        if process.stderr is None:
            return ""
        with process.stderr as stderr:
            words = os.read(stderr.fileno(), _MAX_STDERR).decode("utf-8", "replace").strip()
        return words or f"exit {process.returncode}"

    async def rest(self) -> None:
        """End the process if nobody is served; the next sandbox that needs one starts another."""
        if self._served or self._restarting is not None:
            return
        for leaving in list(self._leaving):
            await self.settle(leaving)
        self._let_go(kill=True)
        self._ready = None

    async def close(self) -> None:
        """End the gateway; what is open is reset."""
        self._closed = True
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        self._served.clear()
        self._let_go(kill=True)

    def abandon(self) -> None:
        """After a fork, in the child: let go of the parent's gateway without ending it."""
        self._closed = True
        if self._end is not None:
            self._end.close()
            self._end = None
        if self._process is not None and self._process.stderr is not None:
            self._process.stderr.close()
        # Not ours to wait for.
        self._process = None


def _settle(settled: asyncio.Future[None] | None) -> None:
    if settled is not None and not settled.done():
        settled.set_result(None)
