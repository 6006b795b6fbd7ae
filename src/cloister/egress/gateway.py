"""The gateway's own loop: told by its owner whom to serve, gone when the owner is."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from typing import Any

from cloister.egress import control
from cloister.egress.bounds import USUAL, Bounds
from cloister.egress.intake import Intake
from cloister.egress.pipes import Pipes
from cloister.egress.reports import Reports
from cloister.egress.secrets.bound import Secrets
from cloister.egress.terms import read_terms
from cloister.egress.upstream import Upstream
from cloister.egress.ward import Depth, Ward

_DOORS = 6
# Of a sandbox that is served for the first time, and whose requests are not read.
_USUAL: Mapping[str, Any] = {"book": {}, "used": {}, "depth": None, "values": {}}


class Gateway:
    """All sandboxes of one owner."""

    def __init__(self, end: socket.socket, bounds: Bounds = USUAL) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = end
        self._bounds = bounds
        self._reports = Reports(end, self._loop)
        self._upstream = Upstream(bounds)
        self._pipes = Pipes()
        self._intakes: dict[str, Intake] = {}
        self._wards: dict[str, Ward] = {}
        self._over: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        """Serve until the owner is gone, or says what makes no sense."""
        self._end.setblocking(False)
        self._loop.add_reader(self._end, self._on_frame)
        control.send(self._end, {"do": "ready"})
        try:
            await self._over
        finally:
            self._loop.remove_reader(self._end)
            for intake in self._intakes.values():
                intake.close()
            self._upstream.close()
            self._pipes.close()

    def _on_frame(self) -> None:
        try:
            received = control.receive(self._end)
        except BlockingIOError:
            return
        except (OSError, control.BadFrame) as error:
            self._finish(error)
            return
        if received is None:
            self._finish(None)
            return
        frame, fds = received
        try:
            self._obey(frame, fds)
        except Exception as error:
            self._finish(error)
        finally:
            for fd in fds:
                os.close(fd)

    def _finish(self, error: Exception | None) -> None:
        if self._over.done():
            return
        if error is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(error)

    def _obey(self, frame: dict[str, Any], fds: list[int]) -> None:
        """Do what a frame says; descriptors that are kept are taken out of the list."""
        match frame:
            case {"do": "serve", "sandbox": str(id)} if len(fds) in (_DOORS, _DOORS + 1):
                more = control.read_document(fds[_DOORS]) if len(fds) > _DOORS else {}
                doors = fds[:_DOORS]
                del fds[:_DOORS]
                self._serve(id, {**_USUAL, **frame, **more}, doors)
            case {"do": "forget", "sandbox": str(id), "number": int(number)}:
                intake = self._intakes.pop(id, None)
                self._wards.pop(id, None)
                self._loop.call_soon(self._loop.call_soon, self._forget, intake, id, number)
            case {"do": "settle", "sandbox": str(id), "number": int(number)}:
                # Once round the loop: what waits at the doors now is taken before.
                self._loop.call_soon(self._loop.call_soon, self._reports.tell_last, id, number)
            case {"do": "reply", "sandbox": str(id), "number": int(number), "answer": dict(table)}:
                ward = self._wards.get(id)
                if ward is not None:
                    ward.reply(number, table)
            case {"do": "answer", "names": dict(names)}:
                # Sent by tests only, before any sandbox is served.
                self._upstream.close()
                self._upstream = Upstream(self._bounds, names)
            case _:
                raise control.BadFrame("a frame that says nothing known")

    def _forget(self, intake: Intake | None, id: str, number: int) -> None:
        if intake is not None:
            intake.close()
        # After what is open has been cut and told.
        self._loop.call_soon(self._loop.call_soon, self._reports.tell_last, id, number)

    def _serve(self, id: str, content: dict[str, Any], doors: list[int]) -> None:
        policy = read_terms(content["terms"])
        ward = self._wards[id] = Ward(
            id,
            policy,
            content["book"],
            self._reports,
            self._upstream,
            self._pipes,
            self._bounds,
            depth=_depth(content["depth"]),
            secrets=Secrets.of(content["values"], policy.secrets),
            used=content["used"],
        )
        old = self._intakes.pop(id, None)
        if old is not None:
            old.close()
        intake = self._intakes[id] = Intake(ward, doors)
        intake.begin()


def _depth(content: dict[str, str] | None) -> Depth | None:
    if content is None:
        return None
    # Loaded by who needs it: a gateway that opens no TLS starts without.
    from cloister.egress.depth.authority import Authority, Leaves

    return Depth(Leaves(Authority(content["certificate"], content["key"])), content["bundle"])
