"""What each tool takes, in the words that a model reads."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MAXIMUM_MATCHES = 1000
MAXIMUM_LINES = 20_000
MAXIMUM_WAIT_S = 300

Path = Annotated[
    str,
    Field(
        min_length=1,
        max_length=4096,
        description="Path in the sandbox; a relative one starts at the working directory.",
    ),
]


class Arguments(BaseModel):
    """What every tool's arguments share: what is not known is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RunArguments(Arguments):
    """A command."""

    command: str = Field(
        min_length=1,
        description="Shell command line, run by bash where there is one, else by sh. Standard "
        "input is empty. Each call is a new shell: a `cd` or variable does not last.",
    )
    cwd: Path | None = Field(default=None, description="Directory to run in, if another one.")
    timeout_s: float | None = Field(
        default=None,
        gt=0,
        description="Seconds after which the command and all it started are killed; 120 unless "
        "given. For servers and long jobs use background instead.",
    )
    background: bool = Field(
        default=False,
        description="Return at once and let it run on; `output` reads what it prints and tells "
        "how it ends, `stop` ends it.",
    )


class OutputArguments(Arguments):
    """More of what a command printed."""

    process: str = Field(max_length=32, description='Which command, as `run` named it: "p1".')
    cursor: int = Field(
        default=0, ge=0, description="Where to go on: next_cursor of the last answer; 0 begins."
    )
    wait_s: float = Field(
        default=0,
        ge=0,
        le=MAXIMUM_WAIT_S,
        description="If there is nothing new yet, wait so long for more, or for its end.",
    )


class StopArguments(Arguments):
    """A command to end."""

    process: str = Field(max_length=32, description='Which command, as `run` named it: "p1".')


class ReadArguments(Arguments):
    """A file to read."""

    path: Path
    first_line: int = Field(
        default=1, ge=1, description="First line to return; lines count from 1."
    )
    lines: int = Field(
        default=1000, ge=1, le=MAXIMUM_LINES, description="How many lines to return at most."
    )


class WriteArguments(Arguments):
    """A file to write."""

    path: Path
    content: str = Field(description="The whole new content.")


class EditArguments(Arguments):
    """A replacement in a file."""

    path: Path
    old: str = Field(
        min_length=1,
        description="Exact text to replace, whitespace and line ends included. It must occur once, "
        "so take enough lines around it, unless replace_all is set.",
    )
    new: str = Field(description="What to put there; empty removes it.")
    replace_all: bool = Field(default=False, description="Replace every occurrence.")


class SearchArguments(Arguments):
    """What to look for."""

    pattern: str | None = Field(
        default=None,
        max_length=4096,
        description="Regular expression to find in lines (Perl style: \\d, \\b, (?i)). Leave it "
        "out to find files by glob alone.",
    )
    glob: str | None = Field(
        default=None,
        max_length=1024,
        description='Only files like this: "*.py" by name anywhere, "src/**/*.ts" by path below '
        "the searched directory.",
    )
    path: Path = Field(default=".", description="Directory or file to search.")
    limit: int = Field(
        default=100, ge=1, le=MAXIMUM_MATCHES, description="How many matches to return at most."
    )


class ListArguments(Arguments):
    """A directory to list."""

    path: Path = Field(default=".", description="The directory.")
    limit: int = Field(
        default=500, ge=1, le=5000, description="How many entries to return at most."
    )


class SnapshotArguments(Arguments):
    """A moment to keep."""

    name: str | None = Field(
        default=None, max_length=100, description="A name to find it by, such as before-upgrade."
    )


class SnapshotsArguments(Arguments):
    """Nothing is asked."""


class RewindArguments(Arguments):
    """A moment to go back to."""

    to: str = Field(max_length=200, description="Name or id of a snapshot, as `snapshots` lists.")


class DiffArguments(Arguments):
    """What to compare."""

    path: Path = Field(default="/", description="Only what is below this path.")
    since: str | None = Field(
        default=None,
        max_length=200,
        description="Name or id of a snapshot to compare with; the beginning unless given.",
    )
    patch: bool = Field(
        default=False, description="Return the changed text itself, as git shows it."
    )
