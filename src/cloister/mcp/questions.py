"""What waits for a person, and how an MCP client asks them: as elicitation, in either era."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import Any

from cloister.errors import RequestError
from cloister.model.approvals import Answer, Question, parse_how

_WHO = "mcp client"
_CHOICES = (
    ("once", "Yes, this once"),
    ("for_sandbox", "Yes, and the same again without asking"),
    ("deny", "No"),
)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "answer": {
            "type": "string",
            "title": "Let it through?",
            "oneOf": [{"const": value, "title": title} for value, title in _CHOICES],
        }
    },
    "required": ["answer"],
}


@dataclass(eq=False, slots=True)
class Pending:
    """One question, and where its answer goes; `id` cannot be guessed."""

    question: Question
    answer: asyncio.Future[Answer]
    id: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    is_taken: bool = False

    def message(self) -> str:
        """Return what the person reads; nothing in it can be taken for words of ours."""
        return "\n".join(["The sandbox asks to let this through:", *self.question.lines()])


class InputNeeded(RequestError):
    """The call cannot go on before its client has asked a person and comes back."""

    def __init__(self, pending: Pending) -> None:
        super().__init__("a person must be asked before this call can go on")
        self.pending = pending


class Questions:
    """All that waits, of one sandbox. Other ways to answer stay open beside this one."""

    def __init__(self) -> None:
        self._pending: list[Pending] = []
        self._news = asyncio.Event()

    async def approve(self, question: Question) -> Answer:
        """Wait for whoever calls next to have it asked; for `Sandbox(approve=)`."""
        pending = Pending(question, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        self._news.set()
        try:
            return await pending.answer
        finally:
            self._pending.remove(pending)

    async def wait_new(self) -> None:
        """Wait until there is something that nobody has been asked yet."""
        while not any(not each.is_taken for each in self._pending):
            self._news.clear()
            await self._news.wait()

    def take(self) -> Pending | None:
        """Return a question to ask, which nobody else asks then."""
        for pending in self._pending:
            if not pending.is_taken:
                pending.is_taken = True
                return pending
        return None

    def find(self, id: str) -> Pending | None:
        """Return the question of that id, if it still waits."""
        return next((each for each in self._pending if secrets.compare_digest(each.id, id)), None)


def settle(pending: Pending, action: str, content: object) -> None:
    """Give the answer that came back from a client: what is no clear yes is a no."""
    said = content.get("answer") if isinstance(content, dict) else None
    if action != "accept" or said not in [value for value, _ in _CHOICES]:
        answer = Answer("deny", _WHO, "declined" if action == "decline" else "not answered")
    else:
        answer = Answer(parse_how(said), _WHO)
    if not pending.answer.done():
        pending.answer.set_result(answer)
