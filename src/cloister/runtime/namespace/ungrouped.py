"""What /proc shows of the processes of a sandbox whose user may make no control groups."""

from __future__ import annotations

from pathlib import Path

# Everything inside comes after its first process: whom a parent leaves behind is given to that one.
_KIB = 1024
_OWN = ("RssAnon:", "RssShmem:")


def processes_from(first: int) -> tuple[int, ...]:
    """Return the host's numbers of a process and of all below it, as they are just now."""
    below: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            # The name, in parentheses, may hold anything; what follows it is fixed.
            parent = int((path / "stat").read_bytes().rpartition(b")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        below.setdefault(parent, []).append(int(path.name))
    found = [first]
    for pid in found:
        found.extend(below.get(pid, ()))
    return tuple(found)


def memory_of(pids: tuple[int, ...]) -> int:
    """Return the bytes that these processes have to themselves, without the files they map."""
    return sum(_own_bytes(pid) for pid in pids)


def _own_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    rows = (line.split() for line in lines)
    return sum(int(row[1]) * _KIB for row in rows if row and row[0] in _OWN)
