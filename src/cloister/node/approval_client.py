"""What another process of the same user does with questions: lists them, and answers one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.errors import HostError, NotFound, RequestError
from cloister.model.approvals import How
from cloister.node.approval_queue import MOST_LINE_BYTES, approvals_directory, places
from cloister.node.control_place import connect_to, sweep

_MOST_ANSWER_BYTES = 64 * MOST_LINE_BYTES


@dataclass(frozen=True, slots=True)
class Listed:
    """A question that waits somewhere, as it may be shown."""

    number: int
    sandbox: str
    expires_at: float
    snapshot: str
    digest: str
    summary: str
    lines: tuple[str, ...]
    question: dict[str, Any]
    place: Path


def list_questions() -> list[Listed]:
    """Return all questions of this user that wait, the oldest first."""
    sweep(approvals_directory())
    found = []
    for place in places():
        try:
            tables = _call(place, {"do": "list"}) or ()
        except HostError:
            # One that hangs has nothing that could be answered, and must not hide the others.
            continue
        for table in tables:
            table["lines"] = tuple(table["lines"])
            found.append(Listed(**table, place=place))
    return sorted(found, key=lambda each: each.number)


def answer_question(
    number: int, how: How, *, for_time: str | None = None, reason: str | None = None
) -> Listed:
    """Answer one of them, exactly as it was listed; return it."""
    listed = next((each for each in list_questions() if each.number == number), None)
    if listed is None:
        raise NotFound(
            f"no question {number} waits; `cloister approvals` shows those that do",
            what=str(number),
        )
    request = {"do": "answer", "number": number, "digest": listed.digest, "answer": how}
    _call(listed.place, {**request, "for": for_time, "reason": reason}, required=True)
    return listed


def _call(place: Path, request: dict[str, Any], *, required: bool = False) -> Any:
    end = connect_to(place)
    if end is None:
        if required:
            raise NotFound("its sandbox has ended", what=str(place))
        return None
    with end, end.makefile("rwb") as stream:
        try:
            stream.write(json.dumps(request).encode() + b"\n")
            stream.flush()
            answer = json.loads(stream.readline(_MOST_ANSWER_BYTES) or b"null")
        except (OSError, ValueError) as error:
            raise HostError(f"a process with questions does not answer: {error}") from error
    if answer is None:
        if required:
            raise NotFound("its sandbox has ended", what=str(place))
        return None
    if "error" in answer:
        raise RequestError(str(answer["error"]))
    return answer["ok"]
