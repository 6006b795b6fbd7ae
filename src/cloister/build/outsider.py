"""Runs a program of the host as nobody in particular: as root, under ids that own nothing."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import HostError
from cloister.runtime.namespace.ids import RANGE, IdPool
from cloister.runtime.namespace.instance import runtime_directory

_CLONE_NEWUSER, _CLONE_NEWNS = 0x10000000, 0x00020000
_MS_NOSUID, _MS_NODEV = 2, 4
_READY, _MAPPED = b"r", b"m"
_PROGRAM = "import sys; from cloister.build.outsider import become; become(sys.argv[1:])"


@dataclass(frozen=True, slots=True)
class Outsider:
    """Who the program is: a range of host ids in a user namespace, or the caller where None."""

    first: int | None

    def own(self, path: Path) -> None:
        """Give it a directory."""
        if self.first is not None:
            os.chown(path, self.first, self.first)

    async def start(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> asyncio.subprocess.Process:
        """Start it in a session of its own, with pipes for what it writes and says."""
        if self.first is None:
            return await _start(command, environment, ())
        ready, tell_ready = os.pipe2(os.O_CLOEXEC)
        mapped, tell_mapped = os.pipe2(os.O_CLOEXEC)
        numbers = [str(tell_ready), str(mapped)]
        whole = [sys.executable, "-P", "-c", _PROGRAM, *numbers, *command]
        path = os.pathsep.join(filter(None, sys.path))
        try:
            process = await _start(whole, {**environment, "PYTHONPATH": path}, (tell_ready, mapped))
        except BaseException:
            os.close(ready)
            os.close(tell_mapped)
            raise
        finally:
            os.close(tell_ready)
            os.close(mapped)
        try:
            await asyncio.to_thread(_map, process.pid, self.first, ready, tell_mapped)
        except BaseException:
            process.kill()
            await process.wait()
            raise
        finally:
            os.close(ready)
            os.close(tell_mapped)
        return process


async def _start(
    command: Sequence[str], environment: Mapping[str, str], keep: Sequence[int]
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(environment),
        cwd="/",
        pass_fds=tuple(keep),
        start_new_session=True,
    )


def _map(pid: int, first: int, ready: int, tell_mapped: int) -> None:
    if os.read(ready, 1) != _READY:
        raise HostError("this host makes no user namespaces; see `cloister doctor`")
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{name}").write_text(f"0 {first} {RANGE}\n")
    os.write(tell_mapped, _MAPPED)


@contextlib.contextmanager
def outsider() -> Iterator[Outsider]:
    """Return somebody with no rights on this host but those everybody has.

    An ordinary user needs nobody else: the programs for which this is make a user namespace
    themselves, with the ids of /etc/subuid.
    """
    if os.geteuid() != 0:
        yield Outsider(None)
        return
    pool = IdPool.of_root(runtime_directory() / "ids")
    try:
        yield Outsider(pool.take())
    finally:
        pool.close()


def become(arguments: Sequence[str]) -> None:
    """Enter a user namespace, wait until the parent has given it ids, and be the program."""
    tell_ready, mapped, *command = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS) != 0:
        raise SystemExit(1)
    os.write(int(tell_ready), _READY)
    if os.read(int(mapped), 1) != _MAPPED:
        raise SystemExit(1)
    os.close(int(tell_ready))
    os.close(int(mapped))
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    # Programs here show this directory to what they build, and may not where a mount of the host
    # lies below it.
    if libc.mount(b"none", b"/dev/shm", b"tmpfs", _MS_NOSUID | _MS_NODEV, None) != 0:
        raise SystemExit(f"shared memory cannot be covered: {os.strerror(ctypes.get_errno())}")
    os.environ.pop("PYTHONPATH", None)
    os.execv(command[0], command)  # noqa: S606
