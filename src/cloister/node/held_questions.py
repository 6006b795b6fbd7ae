"""The questions of a gateway that wait for an answer: asked, answered, or withdrawn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from cloister.model import SandboxId
from cloister.model.approvals import Answer, Question

Ask = Callable[[Question], Awaitable[Answer]]
Reply = Callable[[Mapping[str, Any]], None]
# The gateway has no more than this for one sandbox at once.
_MOST_OF_ONE = 64


class HeldQuestions:
    """What all sandboxes of one gateway wait for; `reply` sends a frame to it."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._held: dict[tuple[SandboxId, int], asyncio.Task[None]] = {}

    def ask(self, id: SandboxId, number: int, table: Mapping[str, Any], ask: Ask | None) -> None:
        """Have a question answered; raises ValueError for one that is none."""
        question = Question.from_dict(table)
        of_one = sum(1 for held, _ in self._held if held == id)
        if (id, number) in self._held or of_one >= _MOST_OF_ONE:
            raise ValueError("a question too many")
        task = asyncio.get_running_loop().create_task(self._answer(id, number, question, ask))
        self._held[id, number] = task
        task.add_done_callback(lambda _: self._held.pop((id, number), None))

    async def _answer(
        self, id: SandboxId, number: int, question: Question, ask: Ask | None
    ) -> None:
        answer = Answer("deny", reason="nobody is there to be asked")
        try:
            if ask is not None:
                answer = await ask(question)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # Whatever broke on the way to a person: it is not allowed, and says so.
            answer = Answer("deny", reason=f"asking failed: {type(error).__name__}")
        frame = {"do": "reply", "sandbox": id, "number": number, "answer": answer.as_dict()}
        self._reply(frame)

    def withdraw(self, id: SandboxId, number: int | None = None) -> None:
        """Nobody waits for it any more; without a number, for none of that sandbox."""
        for (held, each), task in list(self._held.items()):
            if held == id and number in (None, each):
                task.cancel()

    def clear(self) -> None:
        """The gateway is gone, and with it all that waited."""
        for task in list(self._held.values()):
            task.cancel()
