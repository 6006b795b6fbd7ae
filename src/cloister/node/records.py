"""A line about each live sandbox, on a tmpfs, so that `cloister ps` sees those of all processes."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path

from cloister.runtime.namespace.instance import runtime_directory
from cloister.store.locks import is_held


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """What other processes may know of a sandbox."""

    id: str
    runtime: str
    owner_pid: int
    guest_pid: int
    started_at: float
    trust: str
    profile: str
    label: str | None
    groups: tuple[str, ...]

    @property
    def age_s(self) -> float:
        """How long it has been running."""
        return max(0.0, time.time() - self.started_at)


_NAMES = tuple(field.name for field in dataclasses.fields(Record))


def write_record(path: Path, record: Record) -> None:
    """Write a record; it exists as long as its sandbox."""
    text = json.dumps({name: getattr(record, name) for name in _NAMES})
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    try:
        # All of it in one call: it is short, and on a tmpfs.
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def list_records(base: Path | None = None) -> list[Record]:
    """Return the records of live sandboxes of this user, oldest first."""
    directory = runtime_directory() if base is None else base
    found = []
    for path in directory.glob("*.json"):
        instance = path.name.partition(".")[0]
        if not is_held(directory / f"{instance}.lock"):
            continue
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            fields["groups"] = tuple(fields["groups"])
            found.append(Record(**fields))
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            # It ended, or is being written, while we looked.
            continue
    return sorted(found, key=lambda record: record.started_at)
