"""The disks that a machine reads: found or made, and held for as long as it has them.

Who removes a disk that is no longer current asks for its lock first. A machine has a shared one by
the descriptors that it was given, so nothing has to be given back, however it ends.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from cloister.errors import CloisterError, HostError, Unsupported
from cloister.runtime.memory import Memory
from cloister.runtime.microvm import images
from cloister.runtime.microvm.given_up import in_thread
from cloister.runtime.microvm.held import hold
from cloister.runtime.microvm.host_disks import HostDisks
from cloister.runtime.microvm.old_disks import remove_old
from cloister.runtime.microvm.place import machine_directory

Layers = Sequence[tuple[str | None, bool]]
# Between being found and being held a disk may be removed, if it is one that is not current.
_ATTEMPTS = 3


class LayerDisks:
    """The disks of the layers of plans, as one process knows them."""

    def __init__(self) -> None:
        self._host_disks = HostDisks()
        self._known: set[Path] = set()

    def current(self, layers: Layers) -> list[Path]:
        """Return the disks of these directories as they are now. To be asked in threads."""
        found = []
        for source, exact in layers:
            if not exact:
                found.append(self._host_disks.current(source))
            elif source is None:
                found.append(images.etc_image())
            else:
                found.append(images.layer_image(Path(source)))
        if not self._known.issuperset(found):
            # The first ones of this process, or others than before, which may be of no use now.
            self._known.update(found)
            place = (machine_directory(),)
            threading.Thread(
                target=_remove_old, args=place, name="cloister-look", daemon=True
            ).start()
        return found

    async def held(
        self, held: ExitStack, layers: Layers, memory: Memory | None = None
    ) -> tuple[list[Path], list[int]]:
        """Return the disks, and descriptors that keep them there, closed with `held`.

        A machine that goes on from memory reads what it read before.
        """
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError):
                if memory is not None and memory.disks:
                    paths = await asyncio.to_thread(disks_of_memory, memory.disks)
                else:
                    paths = await in_thread(self.current, layers)
                return paths, hold_disks(held, paths)
        raise HostError("the disks for a machine are removed while it starts; try again")


def _remove_old(place: Path) -> None:
    # Nobody waits for it: the next one who looks tries again, and `cloister gc` says what is wrong.
    with suppress(CloisterError, OSError):
        remove_old(place)


def hold_disks(held: ExitStack, paths: Iterable[Path]) -> list[int]:
    """Return descriptors of disks that nobody removes while one of them is open anywhere."""
    with ExitStack() as opened:
        found = [hold(opened, _locked(path)) for path in paths]
        held.push(opened.pop_all())
    return found


def _locked(path: Path) -> int:
    disk = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(disk, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if os.fstat(disk).st_nlink:
            return disk
    except BlockingIOError:
        # Whoever has it to themselves is about to remove it.
        pass
    except BaseException:
        os.close(disk)
        raise
    os.close(disk)
    raise FileNotFoundError(path)


def disks_of_memory(kept: Sequence[tuple[str, Path]]) -> list[Path]:
    """Return where the disks of a memory lie: where machines look for them, if they still do.

    Each is put back there under its name, or another where that was given again.
    """
    return [_put_back(name, path) for name, path in kept]


def _put_back(name: str, path: Path) -> Path:
    try:
        status = path.stat()
    except FileNotFoundError:
        raise Unsupported(
            f"the machine was saved with the disk {name}, which is not there any more; give its "
            "programs up with `cloister resume --discard`, its files are there"
        ) from None
    for each in (name, f"other-{status.st_ino:x}-{status.st_mtime_ns:x}.img"):
        place = machine_directory() / each
        try:
            os.link(path, place)
        except FileExistsError:
            if not os.path.samefile(place, path):
                continue
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return path
        return place
    raise HostError(f"there is no place for the disk {name} in {machine_directory()}")
