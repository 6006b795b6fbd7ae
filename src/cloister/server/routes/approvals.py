"""Questions that wait for a person, of a tenant's sandboxes; and their answers."""

from __future__ import annotations

from typing import Any

import msgspec

from cloister.errors import NotFound
from cloister.node import Node
from cloister.node.approval_queue import ApprovalQueue, Waiting
from cloister.server.call import Call
from cloister.server.endpoint import Endpoint


class Waits(msgspec.Struct):
    """One question. `lines` is what a person should be shown: whatever a program chose is escaped.

    An answer names the `digest`, so that it is about what was shown and nothing else.
    """

    number: int
    sandbox: str
    expires_at: float
    digest: str
    summary: str
    lines: list[str]
    snapshot: str


class WaitingList(msgspec.Struct):
    """All that wait now."""

    approvals: list[Waits]


class AnswerGiven(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """An answer: once, for_time (then `for` says how long), for_sandbox, or deny."""

    digest: str
    answer: str
    for_time: str | float | None = msgspec.field(default=None, name="for")
    reason: str = ""


async def _list(call: Call) -> WaitingList:
    return WaitingList([_shown(id, waiting) for id, waiting in _of_the_tenant(call)])


async def _answer(call: Call) -> dict[str, Any]:
    text = call.request.path_params["number"]
    given = await call.body(AnswerGiven)
    for _, waiting in _of_the_tenant(call):
        if str(waiting.number) == text:
            who = f"token {call.caller.token} of {call.caller.tenant}"
            _queue().answer(
                waiting.number,
                given.digest,
                {"answer": given.answer, "for": given.for_time, "reason": given.reason},
                who,
            )
            return {"number": waiting.number, "answer": given.answer}
    raise NotFound(f"no question {text[:20]!a} waits", what=text[:20])


def _of_the_tenant(call: Call) -> list[tuple[str, Waiting]]:
    # A token that opens one sandbox may be inside it: it answers no question, not even of that.
    call.require_any_sandbox()
    names = {
        resident.keep or resident.sandbox.id: resident.id
        for resident in call.fleet.of_tenant(call.caller.tenant)
    }
    return [(names[each.sandbox], each) for each in _queue().waiting if each.sandbox in names]


def _queue() -> ApprovalQueue:
    return Node.current().approvals


def _shown(id: str, waiting: Waiting) -> Waits:
    said = waiting.as_dict()
    lines = [str(line) for line in said["lines"]]
    return Waits(
        waiting.number,
        id,
        waiting.expires_at,
        said["digest"],
        said["summary"],
        lines,
        waiting.snapshot,
    )


ENDPOINTS = (
    Endpoint(
        *("GET", "/v1/approvals", "approvals:read", _list),
        "What waits for a person, of all sandboxes of the tenant",
        gives=WaitingList,
    ),
    Endpoint(
        *("POST", "/v1/approvals/{number}", "approvals:write", _answer),
        "Answer a question",
        takes=AnswerGiven,
        gives=dict[str, Any],
    ),
)
