"""The doors of one sandbox: takes what comes, as much at once as it may be and in its turn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from cloister.egress.caller import Caller
from cloister.egress.names import Names
from cloister.egress.passage import Passage
from cloister.egress.proxies import by_http, by_socks
from cloister.egress.refused import read_waiting
from cloister.egress.ward import Ward

# How long a door stays shut when the process has no descriptor left, or questions come too fast.
_PAUSE_S = 0.05
_DATAGRAMS_AT_ONCE = 32
_NETLINK_NETFILTER = 12
# Family, type and protocol of each door, which need not be asked of the kernel.
_TCP = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
_NAMES = (socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_UDP)
_REFUSALS = (socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
_KINDS = (_TCP, _NAMES, _TCP, _TCP, _TCP, _REFUSALS)


class Intake:
    """Listens at the six doors, in the order in which they travel."""

    def __init__(self, ward: Ward, fds: Sequence[int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ward = ward
        self._doors = [
            socket.socket(*kind, fileno=fd) for kind, fd in zip(_KINDS, fds, strict=True)
        ]
        for door in self._doors:
            door.setblocking(False)
        tcp, self._questions, names_tcp, http_proxy, socks, self._refusals = self._doors
        self._names = Names(ward.may_ask, ward.address_of, ward.tell_question)
        self._ways: dict[socket.socket, Callable[[Passage], Coroutine[Any, Any, None]]] = {
            tcp: Passage.redirected,
            http_proxy: by_http,
            socks: by_socks,
        }
        self._names_tcp = names_tcp
        self._open: set[asyncio.Task[None]] = set()
        self._asking: set[asyncio.Task[None]] = set()
        # Doors that wait until something of their kind has ended.
        self._full: set[socket.socket] = set()
        self._closed = False
        ward.meter.on_over = self._cut_soon

    def begin(self) -> None:
        """Take what has come and what comes."""
        # By number: of a socket that it does not watch asyncio asks the kernel both its names.
        self._listen()
        self._loop.add_reader(self._questions.fileno(), self._on_questions)
        self._loop.add_reader(self._refusals.fileno(), self._on_refusals)

    def _listen(self) -> None:
        for door in (*self._ways, self._names_tcp):
            self._resume(door)

    def _pause(self, *doors: socket.socket) -> None:
        for door in doors:
            self._loop.remove_reader(door.fileno())

    def close(self) -> None:
        """Take nothing more; what is open is reset."""
        self._closed = True
        for door in self._doors:
            self._loop.remove_reader(door.fileno())
            door.close()
        for task in (*self._open, *self._asking):
            task.cancel()

    def _cut_soon(self) -> None:
        # Not at once: whoever has reached the limit says so first.
        self._loop.call_soon(self._loop.call_soon, self._cut)

    def _cut(self) -> None:
        """End what is open; what comes from now on is judged anew."""
        for task in self._open:
            task.cancel()

    def _on_connection(self, door: socket.socket) -> None:
        bounds, is_name = self._ward.bounds, door is self._names_tcp
        tasks = self._asking if is_name else self._open
        for _ in range(bounds.accepts_at_once):
            if len(tasks) >= (bounds.name_connections if is_name else bounds.connections):
                alike = {self._names_tcp} if is_name else {*self._ways}
                self._full |= alike
                self._pause(*alike)
                return
            try:
                sock, _ = door.accept()
            except BlockingIOError:
                return
            except OSError:
                # No descriptor is left, or the program has gone already: the others wait.
                self._pause(door)
                self._loop.call_later(_PAUSE_S, self._resume, door)
                return
            task = self._loop.create_task(self._serve(door, sock))
            tasks.add(task)
            task.add_done_callback(self._on_done)

    def _resume(self, door: socket.socket) -> None:
        if not self._closed and door not in self._full:
            self._loop.add_reader(door.fileno(), self._on_connection, door)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        self._asking.discard(task)
        if not task.cancelled():
            # Re-raised where the loop's own reporting sees it, not lost.
            error = task.exception()
            if error is not None:
                self._ward.tell(kind="fault", error=type(error).__name__)
        if self._full:
            # Whichever kind it was, a door that is still full finds so at once.
            self._full.clear()
            self._listen()

    async def _serve(self, door: socket.socket, sock: socket.socket) -> None:
        try:
            is_name = door is self._names_tcp
            caller = Caller(sock, None if is_name else self._ward.meter)
            if is_name:
                await self._names.serve(caller, self._ward.bounds.head_s)
            else:
                await Passage(self._ward, caller).serve(self._ways[door])
        finally:
            with contextlib.suppress(OSError):
                sock.close()

    def _on_questions(self) -> None:
        if self._names.answer_waiting(self._questions, _DATAGRAMS_AT_ONCE) == _DATAGRAMS_AT_ONCE:
            rate = self._ward.bounds.questions_per_s
            self._rest(self._questions, self._on_questions, rate)

    def _on_refusals(self) -> None:
        packets, count = read_waiting(self._refusals, _DATAGRAMS_AT_ONCE)
        for packet in packets:
            self._ward.tell(
                kind="packet",
                protocol=packet.protocol,
                host=packet.address,
                port=packet.port,
                allowed=False,
                rule="default",
                reason="only TCP and questions for names have a way out",
            )
        if count == _DATAGRAMS_AT_ONCE:
            self._rest(self._refusals, self._on_refusals, self._ward.bounds.refusals_per_s)

    def _rest(self, door: socket.socket, then: Callable[[], None], rate: int) -> None:
        """A flood waits, so that other sandboxes are served: the kernel drops what is too much."""

        def resume() -> None:
            if not self._closed:
                self._loop.add_reader(door.fileno(), then)

        self._pause(door)
        self._loop.call_later(_DATAGRAMS_AT_ONCE / rate, resume)
