"""What each tool answers as data, beside the text a model reads."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """What every answer shares."""

    model_config = ConfigDict(frozen=True)


class RunAnswer(Answer):
    """How a command ended, or that it runs."""

    process: str = Field(description="Its name for `output` and `stop`.")
    state: Literal["running", "ended"]
    exit_code: int | None = Field(description="128 + N after signal N; null while it runs.")
    reason: str | None = Field(
        description="Why it ended: exit, signal, timeout, memory, pids, disk or cancelled."
    )
    output: str = Field(description="Standard output and error together; see next_cursor.")
    next_cursor: int | None = Field(
        description="Where `output` goes on with what is left out here; null if that is nothing."
    )
    total_bytes: int = Field(description="How much it has printed so far.")
    wall_s: float | None


class ReadAnswer(Answer):
    """A part of a text file, or an image."""

    path: str
    text: str | None = Field(description="The lines as they are; null for an image.")
    first_line: int | None
    next_line: int | None = Field(description="First line of the rest; null at the end.")


class WriteAnswer(Answer):
    """That a file was written."""

    path: str
    bytes: int
    created: bool


class EditAnswer(Answer):
    """Where a file was changed."""

    path: str
    replaced: int
    line: int = Field(description="Line of the first replacement.")


class Match(Answer):
    """A line that matched; without a pattern, a file."""

    path: str
    line: int | None = None
    text: str | None = None


class SearchAnswer(Answer):
    """What was found."""

    matches: list[Match]
    truncated: bool = Field(description="Whether there is more; narrow the search to see it.")


class Item(Answer):
    """One thing in a directory."""

    name: str
    kind: str
    size: int
    mode: str
    target: str | None = None


class ListAnswer(Answer):
    """What is in a directory."""

    path: str
    entries: list[Item]
    truncated: bool


class Moment(Answer):
    """One snapshot."""

    id: str
    name: str | None
    created_at: float
    command: str | None = None


class SnapshotAnswer(Answer):
    """The snapshot that was taken, or gone back to."""

    snapshot: Moment


class SnapshotsAnswer(Answer):
    """All snapshots, oldest first."""

    snapshots: list[Moment]


class Difference(Answer):
    """One path that differs."""

    kind: str
    type: str
    path: str


class DiffAnswer(Answer):
    """What changed."""

    changes: list[Difference]
    truncated: bool
    patch: str | None = None
