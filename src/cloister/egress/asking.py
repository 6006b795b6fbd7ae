"""Holds what must wait for a person: few questions at once, the oldest first, none twice."""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from cloister.egress.bounds import Bounds
from cloister.egress.reports import Reports
from cloister.model.approvals import Answer, Question

# Of all sandboxes: one that is served anew must not be given the answer to an older question.
_NUMBERS = itertools.count(1)
_RETRY_S = 0.01
_TELL_S = 2.0
_MOST_LANES = 256


class _Lane:
    """Questions about one and the same, of which one at a time is asked."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.waiting = 0
        self.denied_until = 0.0


class Asking:
    """The questions of one sandbox; its owner answers, by a person or by an earlier answer."""

    def __init__(self, id: str, reports: Reports, bounds: Bounds) -> None:
        self._id = id
        self._reports = reports
        self._bounds = bounds
        self._loop = asyncio.get_running_loop()
        self._open: dict[int, asyncio.Future[Answer]] = {}
        self._lanes: OrderedDict[tuple[object, ...], _Lane] = OrderedDict()
        self._at_once = asyncio.Semaphore(bounds.questions_at_once)
        self._held = 0
        self._left = float(bounds.questions_in_a_row)
        self._counted_at = self._loop.time()

    async def ask(self, question: Question) -> Answer:
        """Return the answer to a question; whatever goes wrong is a deny."""
        if self._held >= self._bounds.questions_held:
            return Answer("deny", reason=f"{self._held} questions wait already, which is the most")
        lane = self._lane(question.scope)
        self._held += 1
        lane.waiting += 1
        try:
            async with lane.turn:
                if self._loop.time() < lane.denied_until:
                    return Answer("deny", reason="the same was denied a moment ago")
                answer = await self._ask(question)
                if not answer.allowed:
                    lane.denied_until = self._loop.time() + self._bounds.denied_s
                return answer
        finally:
            self._held -= 1
            lane.waiting -= 1

    def _lane(self, scope: tuple[object, ...]) -> _Lane:
        lane = self._lanes.setdefault(scope, _Lane())
        self._lanes.move_to_end(scope)
        if len(self._lanes) > _MOST_LANES:
            idle = next((key for key, each in self._lanes.items() if not each.waiting), None)
            if idle is not None and idle != scope:
                del self._lanes[idle]
        return lane

    async def _ask(self, question: Question) -> Answer:
        async with self._at_once:
            if not self._take_turn():
                return Answer("deny", reason="too many questions in a short time")
            answer = await self._ask_owner(question)
            if answer.is_standing:
                # Nobody was troubled.
                self._left += 1
            return answer

    def _take_turn(self) -> bool:
        now = self._loop.time()
        gained = (now - self._counted_at) / self._bounds.question_every_s
        self._left = min(float(self._bounds.questions_in_a_row), self._left + gained)
        self._counted_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    async def _ask_owner(self, question: Question) -> Answer:
        number = next(_NUMBERS)
        frame = {"do": "ask", "sandbox": self._id, "number": number, "question": question.as_dict()}
        answered: asyncio.Future[Answer] = self._loop.create_future()
        self._open[number] = answered
        is_told = False
        try:
            is_told = await self._tell(frame)
            if not is_told:
                return Answer("deny", reason="nobody could be asked")
            return await answered
        finally:
            del self._open[number]
            if is_told and (answered.cancelled() or not answered.done()):
                # Whoever wanted to know is gone.
                self._reports.tell_now({"do": "withdraw", "sandbox": self._id, "number": number})

    async def _tell(self, frame: dict[str, Any]) -> bool:
        last = self._loop.time() + _TELL_S
        while not self._reports.tell_now(frame):
            if self._loop.time() > last:
                return False
            # Nothing tells when the owner has read; it is told again.
            await asyncio.sleep(_RETRY_S)
        return True

    def reply(self, number: int, table: Mapping[str, Any]) -> None:
        """The owner has answered a question; one that is not asked any more is nobody's."""
        answered = self._open.get(number)
        if answered is not None and not answered.done():
            answered.set_result(Answer.from_dict(table))
