"""What of the host's programs only its root may look at, so that no sandbox's root is shown it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from cloister.errors import CannotEnforce, CloisterError
from cloister.model import Profile
from cloister.policy import HostRoot, Policy
from cloister.runtime.namespace.instance import runtime_directory
from cloister.runtime.namespace.rootfs import host_programs

# Each is one mount of each sandbox that has a root of its own.
MOST = 128
# What changes a directory is seen after so long, what changes only the mode of a file after more.
_FRESH_S = 30.0
_WHOLE_S = 3600.0
_OTHERS_READ, _OTHERS_EXECUTE = stat.S_IROTH, stat.S_IXOTH


@dataclass(frozen=True, slots=True)
class Seen:
    """What one walk found: paths without their first slash, and when directories had changed."""

    hidden: tuple[str, ...]
    changed_ns: dict[str, int]
    walked_at: float


@dataclass(slots=True)
class _Known:
    seen: Seen
    looked_at: float
    turn: threading.Lock = field(default_factory=threading.Lock)


_known: dict[tuple[str, ...], _Known] = {}
_first = threading.Lock()


def hidden_programs(policy: Policy) -> tuple[str, ...]:
    """Return what of the host's programs is covered: with a root inside, what only root may see.

    Where Cloister runs as root that one owns the files of the host's root; elsewhere nobody's.
    """
    is_shown = isinstance(policy.root, HostRoot) and os.geteuid() == 0
    if not is_shown or policy.profile is not Profile.ROOT:
        return ()
    return hidden_below(host_programs()[0], runtime_directory())


async def look_at_programs(policy: Policy) -> None:
    """Look for the first time without holding up what else is done: it may take a second."""
    if policy.profile is Profile.ROOT and not _known:
        await asyncio.to_thread(hidden_programs, policy)


def hidden_below(directories: tuple[str, ...], keep: Path) -> tuple[str, ...]:
    """Return what is to be covered below directories of the host; `keep` is for what was seen.

    The first call of a process looks at every directory, and at every file where one has changed
    since the last walk. Later ones say what is known, and have it looked at beside.
    """
    with _first:
        known = _known.get(directories)
        if known is None:
            known = _known[directories] = _Known(_look(directories, keep), time.monotonic())
            return known.seen.hidden
    if time.monotonic() - known.looked_at > _FRESH_S and known.turn.acquire(blocking=False):
        arguments = (known, directories, keep)
        threading.Thread(
            target=_look_again, args=arguments, name="cloister-look", daemon=True
        ).start()
    return known.seen.hidden


def _look_again(known: _Known, directories: tuple[str, ...], keep: Path) -> None:
    try:
        known.seen = _look(directories, keep)
        known.looked_at = time.monotonic()
    except (CloisterError, OSError):
        # What was seen before is not all there is to hide: whoever starts next looks, and is told.
        _known.pop(directories, None)
    finally:
        known.turn.release()


def _look(directories: tuple[str, ...], keep: Path) -> Seen:
    file = keep / f"hidden.{'.'.join(directories).replace('/', '-')}.json"
    before = _read(file)
    if before is not None and _is_as_it_was(before, directories):
        return before
    seen = walk(directories)
    # One name for all: whoever is killed leaves what the next overwrites, and what two have mixed
    # is no record that is believed.
    draft = file.with_name(f".{file.name}")
    draft.write_text(json.dumps([seen.hidden, seen.changed_ns, seen.walked_at]))
    with contextlib.suppress(FileNotFoundError):
        # Somebody else's was put there in between, which says the same.
        draft.replace(file)
    return seen


def _read(file: Path) -> Seen | None:
    try:
        hidden, changed_ns, walked_at = json.loads(file.read_text())
        return Seen(tuple(hidden), dict(changed_ns), float(walked_at))
    except (OSError, ValueError, TypeError):
        return None


def _is_as_it_was(seen: Seen, directories: tuple[str, ...]) -> bool:
    is_recent = 0 <= time.time() - seen.walked_at < _WHOLE_S
    if not is_recent or not all(f"/{each}" in seen.changed_ns for each in directories):
        return False
    try:
        return all(os.stat(path).st_mtime_ns == at for path, at in seen.changed_ns.items())
    except OSError:
        return False


def walk(directories: tuple[str, ...], *, copied: bool = False) -> Seen:
    """Look at everything below directories of the host.

    Where it is `copied` by somebody other than root, what others cannot read is not to be had.
    """
    of_directories = _OTHERS_EXECUTE | _OTHERS_READ if copied else _OTHERS_EXECUTE
    # What everybody may execute is a program, and no secret.
    of_files = _OTHERS_READ if copied else _OTHERS_READ | _OTHERS_EXECUTE
    hidden: list[str] = []
    changed_ns: dict[str, int] = {}
    walked_at = time.time()
    waiting = [f"/{each}" for each in directories]
    while waiting:
        path = waiting.pop()
        try:
            # Before its entries: what comes meanwhile is a change that is seen.
            changed_ns[path] = os.stat(path).st_mtime_ns
            entries = list(os.scandir(path))
        except FileNotFoundError:
            continue
        for entry in entries:
            if entry.is_symlink():
                continue
            try:
                mode = entry.stat(follow_symlinks=False).st_mode
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(mode):
                if mode & of_directories == of_directories:
                    waiting.append(entry.path)
                else:
                    hidden.append(entry.path[1:])
            elif not mode & of_files:
                hidden.append(entry.path[1:])
    return Seen(gathered(hidden, directories), changed_ns, walked_at)


def gathered(hidden: list[str], tops: tuple[str, ...]) -> tuple[str, ...]:
    """Return so few that each can be covered: where many lie together, their directory."""
    found = set(hidden)
    while len(found) > MOST:
        parents = Counter(os.path.dirname(each) for each in found)
        parent, count = parents.most_common(1)[0]
        if parent in tops or count == 1:
            raise CannotEnforce(
                f"{len(found)} files of the host's programs are for its root alone",
                limit="profile root",
                why=f"no more than {MOST} can be covered",
                enable="let everybody read what is below /usr, or move it out of there",
            )
        found = {each for each in found if not each.startswith(f"{parent}/")} | {parent}
    return tuple(sorted(found))
