"""One tool: what it is called, what it says of itself, what it takes, answers and does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mcp_types as wire

from cloister.mcp import arguments as ask
from cloister.mcp import results as told
from cloister.mcp.commands import Caller
from cloister.mcp.desk import Desk


@dataclass(frozen=True, slots=True)
class Told:
    """What a tool answers: data for programs, text for the model, and further content."""

    data: told.Answer
    text: str
    further: Sequence[wire.ContentBlock] = ()


# Each takes the arguments of its own kind, which its tool names.
Act = Callable[[Desk, Any, Caller], Awaitable[Told]]


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool."""

    name: str
    title: str
    says: str
    takes: type[ask.Arguments]
    answers: type[told.Answer]
    act: Act
    only_looks: bool = False
    destroys: bool = False
    repeatable: bool = False
    needs_snapshots: bool = False

    def described(self, *, reaches_out: bool) -> wire.Tool:
        """Return the tool as a client lists it."""
        return wire.Tool(
            name=self.name,
            title=self.title,
            description=self.says,
            input_schema=self.takes.model_json_schema(),
            output_schema=self.answers.model_json_schema(),
            annotations=wire.ToolAnnotations(
                title=self.title,
                read_only_hint=self.only_looks,
                destructive_hint=self.destroys,
                idempotent_hint=self.only_looks or self.repeatable,
                open_world_hint=reaches_out and self.name == "run",
            ),
        )
