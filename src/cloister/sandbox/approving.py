"""Has questions of one sandbox answered: by an earlier answer, a callback, a person, a webhook."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

from cloister.errors import CloisterError
from cloister.model.approvals import Answer, Question
from cloister.node.approval_queue import ApprovalQueue, Waiting, next_number
from cloister.policy import Approvals
from cloister.sandbox.host_places import told_of
from cloister.sandbox.recorded_approvals import RecordedApprovals
from cloister.sandbox.webhook import ask_webhook

# Returns an Answer, or whether it may be, this once. May be a coroutine function.
Approve = Callable[[Question], Awaitable[Answer | bool] | Answer | bool]
TakeSnapshot = Callable[[], Awaitable[str]]
_MOST_STANDING = 1000


class Desk:
    """Where the questions of one sandbox are put, and their answers remembered while they last."""

    def __init__(
        self,
        sandbox: str,
        approvals: Approvals,
        queue: ApprovalQueue,
        *,
        approve: Approve | None = None,
        record: RecordedApprovals | None = None,
        snapshot: TakeSnapshot | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._approvals = approvals
        self._queue = queue
        self._approve = approve
        self._record = record
        self._snapshot = snapshot if approvals.snapshot else None
        self._standing: dict[tuple[object, ...], Answer] = {}
        # Which of the policies it has had is in force.
        self._generation = 0

    def forget(self) -> None:
        """The rules are others now: nothing that was allowed by the old ones stays so."""
        self._generation += 1
        self._standing.clear()

    async def ask(self, question: Question) -> Answer:
        """Return the answer; nobody's, after the time that a question waits, is a deny."""
        standing = self._find_standing(question)
        if standing is not None:
            return standing
        generation = self._generation
        number = await asyncio.to_thread(next_number)
        loop = asyncio.get_running_loop()
        expires_at = time.time() + self._approvals.wait_s
        waiting = Waiting(number, self._sandbox, question, expires_at, loop.create_future())
        if self._record is None:
            return self._remember(question, await self._wait(waiting), generation)
        span = await self._record.ask(number, question, expires_at)
        try:
            answer = await self._wait(waiting)
        except BaseException:
            gone = Answer("cancelled", reason="nobody waits for it any more")
            self._record.answer_nowait(span, number, question, gone)
            raise
        # What is not on the disk is not done.
        await self._record.answer(span, number, question, answer)
        return self._remember(question, answer, generation)

    def _find_standing(self, question: Question) -> Answer | None:
        found = self._standing.get(question.scope)
        if found is None:
            return None
        if found.until is not None and time.time() >= found.until:
            del self._standing[question.scope]
            return None
        return Answer(found.how, found.who, found.reason, found.until, is_standing=True)

    def _remember(self, question: Question, answer: Answer, generation: int) -> Answer:
        stays = answer.how in ("for_time", "for_sandbox") and generation == self._generation
        if stays and len(self._standing) < _MOST_STANDING:
            self._standing[question.scope] = answer
        return answer

    async def _wait(self, waiting: Waiting) -> Answer:
        # What is about to be taken out is on the disk, and stays where it is.
        changes = waiting.question.kind not in ("apply", "export")
        saves = self._snapshot is not None and changes
        saving = asyncio.ensure_future(self._save(waiting)) if saves else None
        ways = self._ways(waiting)
        try:
            with self._queue.holding(waiting):
                async with asyncio.timeout(self._approvals.wait_s):
                    answer = await waiting.answered
                    if answer.allowed and saving is not None:
                        # What is let through can be gone back behind.
                        await saving
                    return answer
        except TimeoutError:
            return Answer("timeout", reason=f"nobody answered in {self._approvals.wait_s:g} s")
        finally:
            for task in (*ways, *(() if saving is None else (saving,))):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, CloisterError):
                    await task

    def _ways(self, waiting: Waiting) -> list[asyncio.Task[None]]:
        loop = asyncio.get_running_loop()
        ways = []
        if self._approve is not None:
            ways.append(loop.create_task(self._call_back(waiting, self._approve)))
        if self._approvals.webhook is not None:
            ways.append(loop.create_task(self._post(waiting)))
        return ways

    async def _call_back(self, waiting: Waiting, approve: Approve) -> None:
        try:
            said = approve(waiting.question)
            answer = await said if inspect.isawaitable(said) else said
        except asyncio.CancelledError:
            raise
        except Exception as error:
            name = type(error).__name__
            answer = Answer("deny", "callback", f"the callback failed: {name}")
        _settle(waiting, _as_answer(answer))

    async def _post(self, waiting: Waiting) -> None:
        try:
            answer = await ask_webhook(self._approvals, waiting.as_dict())
        except CloisterError as error:
            answer = Answer("deny", "webhook", str(error))
        _settle(waiting, answer)

    async def _save(self, waiting: Waiting) -> None:
        if self._snapshot is None:
            return
        try:
            waiting.snapshot = await self._snapshot()
        except CloisterError as error:
            waiting.snapshot = f"none: {told_of(error)}"


def _as_answer(said: Any) -> Answer:
    if isinstance(said, Answer):
        return said
    if said is True:
        return Answer("once", "callback")
    return Answer("deny", "callback", "" if said is False else "the callback gave no answer")


def _settle(waiting: Waiting, answer: Answer) -> None:
    if not waiting.answered.done():
        waiting.answered.set_result(answer)
