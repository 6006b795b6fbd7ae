"""Entries of what is done inside: every process, and what became of the files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from cloister.ledger.payload import Payload, Source, Spent
from cloister.ledger.text import Text, Texts
from cloister.model import Reason


@dataclass(frozen=True, slots=True)
class ProcessStarted(Payload):
    """A process began; begins its span.

    `by` is who started it: a caller through the API, or another process inside. Process numbers
    are the ones inside. `source` is whose word it is: only the guest's is not to be relied on.
    `module` is the digest of a module of WebAssembly, which is run and is no process of its own.
    """

    kind: ClassVar[str] = "process.started"
    argv: Texts
    by: Literal["api", "inside"]
    source: Source
    cwd: Text | None = None
    user: Text | None = None
    pid: int | None = None
    parent_pid: int | None = None
    step: int | None = None
    module: Text | None = None

    def flood(self) -> str | None:
        return "inside" if self.by == "inside" else None


@dataclass(frozen=True, slots=True)
class ProcessEnded(Payload):
    """A process ended; ends the span of its start."""

    kind: ClassVar[str] = "process.ended"
    source: Source
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: Reason | None = None
    usage: Spent | None = None


@dataclass(frozen=True, slots=True)
class FilesChanged(Payload):
    """What one step changed: exact counts, a digest of the whole list, and its first paths.

    With `unseen` it could not be found out, and that is why.
    """

    kind: ClassVar[str] = "files.changed"
    added: int
    modified: int
    removed: int
    content_bytes: int
    digest: Text
    paths: Texts
    step: int | None = None
    unseen: Text | None = None


@dataclass(frozen=True, slots=True)
class FileAccessed(Payload):
    """A caller read, wrote or took out a file through the API, or by applying a change.

    `other` is where it went or came from: the target of a move, the path on the host of a copy.
    """

    kind: ClassVar[str] = "files.accessed"
    operation: Literal[
        "read", "write", "make", "move", "remove", "copy_in", "copy_out", "apply", "export"
    ]
    path: Text
    content_bytes: int | None = None
    digest: Text | None = None
    other: Text | None = None
