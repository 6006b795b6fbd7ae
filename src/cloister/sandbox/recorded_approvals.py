"""Writes questions and answers into the ledger, each before what follows from it."""

from __future__ import annotations

from cloister.ledger import ApprovalAnswered, ApprovalAsked, Ledger, Span
from cloister.model.approvals import Answer, Question


class RecordedApprovals:
    """The questions of one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def ask(self, number: int, question: Question, expires_at: float) -> Span:
        """Write that a person is asked; returns when it is on the disk, or raises."""
        span = self._ledger.begin(
            ApprovalAsked(
                number=number,
                what="; ".join(question.lines()),
                digest=question.digest,
                rule=question.rule,
                expires_ns=int(expires_at * 1e9),
            )
        )
        await self._ledger.settle()
        return span

    async def answer(self, span: Span, number: int, question: Question, answer: Answer) -> None:
        """Write what was answered; returns when it is on the disk, or raises."""
        self.answer_nowait(span, number, question, answer)
        await self._ledger.settle()

    def answer_nowait(self, span: Span, number: int, question: Question, answer: Answer) -> None:
        """Write what was answered, where nothing follows from it."""
        self._ledger.end(
            span,
            ApprovalAnswered(
                number=number,
                answer=answer.how,
                digest=question.digest,
                who=answer.who or None,
                reason=answer.reason or None,
                until_ns=None if answer.until is None else int(answer.until * 1e9),
            ),
        )
