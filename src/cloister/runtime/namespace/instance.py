"""What one process of ours holds on this host: a directory, a lock, ids; and the sweep of what
processes that are no more have left behind."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import stat
import tempfile
import time
from pathlib import Path

from cloister.errors import HostError, LaunchFailed
from cloister.runtime.namespace.cgroups import Layout
from cloister.runtime.namespace.ids import IdPool, SubIds, find_sub_ids
from cloister.runtime.namespace.launcher import Launcher
from cloister.runtime.namespace.layout import find_layout
from cloister.runtime.namespace.lockless import remove_lockless
from cloister.runtime.namespace.memory_place import memory_directories
from cloister.runtime.namespace.scope import scope_command, settle_in_scope

_LOCK = ".lock"
# How long a sweep waits for killed processes to be gone, and how often it looks.
_EMPTYING_S = 5.0
_LOOK_S = 0.005


class Instance:
    """This process's place: `directory` is where its launcher keeps its private mounts."""

    def __init__(self, base: Path, name: str, lock: int, layout: Layout) -> None:
        self.base = base
        self.name = name
        self.directory = base / name
        self.layout = layout
        self.sub_ids: SubIds | None = None if os.geteuid() == 0 else find_sub_ids()
        self.pool = _pool(base, self.sub_ids)
        self._lock = lock

    @classmethod
    def open(cls) -> Instance:
        """Make a place for this process, after sweeping away what dead ones left."""
        base = runtime_directory()
        layout = find_layout()
        sweep(base, layout)
        name, lock = _new_lock(base)
        (base / name).mkdir(mode=0o700)
        instance = cls(base, name, lock, layout)
        instance.record()
        return instance

    def record(self) -> None:
        """Write down where our groups are, for whoever sweeps after us."""
        facts = {"pid": os.getpid(), "groups": [str(path) for path in self.layout.directories()]}
        os.pwrite(self._lock, json.dumps(facts).encode(), 0)

    async def start_launcher(self) -> Launcher:
        """Start the launcher; it holds our lock too, so that nobody sweeps before it has ended."""
        from cloister.runtime.namespace.runtime import cell_binary

        binary = cell_binary()
        if not binary.exists():
            raise HostError(
                f"the launcher {binary} is missing; run `make setup` in a checkout, "
                "or reinstall the package"
            )
        try:
            return await self._start(binary)
        except LaunchFailed:
            if self.sub_ids is None or os.geteuid() == 0:
                raise
            # The helpers refused the ranges: a single id is a narrower sandbox, not a weaker wall.
            self.sub_ids, self.pool = None, None
            return await self._start(binary)

    async def _start(self, binary: Path) -> Launcher:
        through = () if self.layout.has("memory") else scope_command()
        launcher = await Launcher.start(binary, keep=(self._lock,), through=through)
        try:
            if through:
                self.layout = settle_in_scope(launcher.pid)
                self.record()
            await launcher.configure(self.directory, self.sub_ids, self.layout)
        except BaseException:
            await launcher.close()
            raise
        return launcher

    def pool_give_back(self, first: int) -> None:
        """Return a range of ids whose sandbox is gone."""
        if self.pool is not None:
            self.pool.give_back(first)

    def close(self) -> None:
        """Remove what is ours. The launcher must have ended."""
        if self.pool is not None:
            self.pool.close()
        _remove_instance(self.base, self.name, self.layout.directories(), patience_s=0.0)
        os.close(self._lock)

    def abandon(self) -> None:
        """After a fork, in the child: close without removing."""
        if self.pool is not None:
            self.pool.close()
        os.close(self._lock)


def _new_lock(base: Path) -> tuple[str, int]:
    while True:
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        path = base / (name + _LOCK)
        lock = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # A sweep between these two lines took it for a dead one's: then nobody would find it.
        if os.fstat(lock).st_nlink:
            return name, lock
        os.close(lock)


def _pool(base: Path, sub_ids: SubIds | None) -> IdPool | None:
    if os.geteuid() == 0:
        return IdPool.of_root(base / "ids")
    return None if sub_ids is None else IdPool.of_person(base / "ids", sub_ids.count)


def runtime_place() -> Path:
    """Return where things that do not outlive a boot are kept, which need not be there yet."""
    if os.geteuid() == 0:
        return Path("/run/cloister")
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "cloister"
    return Path(tempfile.gettempdir()) / f"cloister-{os.getuid()}"


def runtime_directory() -> Path:
    """Return our directory for things that do not outlive a boot, made and checked."""
    path = runtime_place()
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError as error:
        raise HostError(f"{path} cannot be made: {error.strerror}; {_elsewhere()}") from error
    # In a shared /tmp somebody else could have made it first, to have us write into their hands.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise HostError(f"{path} belongs to somebody else; remove it, or {_elsewhere()}")
    try:
        os.chmod(path, 0o700)
    except OSError as error:
        raise HostError(
            f"{path} is not to be written to: {error.strerror}; {_elsewhere()}"
        ) from error
    return path


def _elsewhere() -> str:
    if os.geteuid() == 0:
        # Root's is the same for every process of root's, whatever the environment says.
        return "mount a tmpfs on /run"
    return "set XDG_RUNTIME_DIR to a directory of yours"


def sweep(base: Path, layout: Layout) -> list[str]:
    """Remove what processes that no longer exist have left; return their names."""
    swept = []
    for path in base.glob("*" + _LOCK):
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        try:
            # Held by the process or by its launcher as long as either lives.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        name = path.name.removesuffix(_LOCK)
        directories = (*_recorded_groups(lock), *layout.directories())
        if _remove_instance(base, name, directories, patience_s=_EMPTYING_S):
            swept.append(name)
        os.close(lock)
    remove_lockless(layout.directories(), base, _LOCK)
    return swept


def _recorded_groups(lock: int) -> tuple[Path, ...]:
    text = os.pread(lock, 65_536, 0)
    try:
        return tuple(Path(path) for path in json.loads(text)["groups"])
    except (ValueError, KeyError, TypeError):
        # Killed before it wrote: then it had made no group either.
        return ()


def _remove_instance(
    base: Path, name: str, directories: tuple[Path, ...], *, patience_s: float
) -> bool:
    """Remove all of it; False if a group stayed busy. Then its lock stays, to be found again."""
    existing = [path for path in dict.fromkeys(directories) if path.is_dir()]
    groups = [group for directory in existing for group in directory.glob(f"{name}.*")]
    for kind in ("json", "pem", "p12"):
        for file in base.glob(f"{name}.*.{kind}"):
            file.unlink(missing_ok=True)
    shutil.rmtree(base / name, ignore_errors=True)
    for place in memory_directories(base):
        for directory in place.glob(f"{name}.*.memory"):
            shutil.rmtree(directory, ignore_errors=True)
    if not _remove_groups(groups, patience_s):
        return False
    (base / (name + _LOCK)).unlink(missing_ok=True)
    return True


def _remove_groups(groups: list[Path], patience_s: float) -> bool:
    for group in groups:
        kill = group / "cgroup.kill"
        if kill.exists():
            kill.write_text("1")
    deadline = time.monotonic() + patience_s
    busy = [group for group in groups if not _remove_group(group)]
    while busy and time.monotonic() < deadline:
        # A v1 group tells nobody when its last process has gone; asking again is the only way.
        time.sleep(_LOOK_S)
        busy = [group for group in busy if not _remove_group(group)]
    return not busy


def _remove_group(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
