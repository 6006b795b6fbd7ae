"""The memory of a machine as a list of pages, all or those that changed: written and laid out."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from cloister.errors import HostError
from cloister.runtime.microvm.held import hold
from cloister.runtime.microvm.images import copy_sparse, data_parts
from cloister.runtime.microvm.layers import HEAD, ZEROS
from cloister.runtime.microvm.machine import Shape, empty_memory
from cloister.runtime.microvm.template import seal
from cloister.runtime.namespace.runtime import cell_binary

_WRITE_S = 120.0
_MAX_SAID = 500
_PAGE, _PART = 4096, 1 << 20
_ZEROS = bytes(_PAGE)


def write_pages(pid: int, base: int, to: Path, listed: bytes | None = None) -> None:
    """Write down what is in the memory of a QEMU that stands still and began from `base`.

    With a list of heads it is what differs from `base`, and what is listed. Not by QEMU, which
    would look at every page of it and so have each one made.
    """
    command = [str(cell_binary()), "pages", str(pid)]
    with ExitStack() as held:
        # A descriptor of its own: where it is read is nobody else's affair.
        given = [hold(held, os.open(f"/proc/self/fd/{base}", os.O_RDONLY | os.O_CLOEXEC))]
        given.append(hold(held, os.open(to, _NEW, 0o600)))
        if listed is not None:
            given.append(hold(held, os.memfd_create("listed", os.MFD_CLOEXEC)))
            _write_all(given[-1], listed)
        _run([*command, *map(str, given)], given)


_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC


def _run(command: list[str], given: list[int]) -> None:
    try:
        done = subprocess.run(command, pass_fds=given, capture_output=True, timeout=_WRITE_S)
    except subprocess.TimeoutExpired:
        raise HostError(
            f"the memory of the machine was not written within {_WRITE_S:.0f} s; try again when "
            "this host is less busy"
        ) from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()[-_MAX_SAID:]
        raise HostError(f"the memory of the machine could not be written: {said}; see `cell pages`")


def write_whole(memory: int, to: Path) -> None:
    """Write down a memory that nobody changes any more."""
    size = os.fstat(memory).st_size
    with open(to, "xb") as out:
        for start, end in data_parts(memory, size):
            for at in range(start, end, _PART):
                part = os.pread(memory, min(_PART, end - at), at)
                for first, last in _used_runs(part):
                    out.write(HEAD.pack(at + first, last - first))
                    out.write(part[first:last])


def _used_runs(part: bytes) -> Iterator[tuple[int, int]]:
    """Yield where pages are that are not zeros, as many together as follow each other."""
    pages = range(0, len(part), _PAGE)
    for is_zero, run in itertools.groupby(pages, lambda at: part.startswith(_ZEROS, at)):
        if not is_zero:
            first, *others = run
            last = others[-1] if others else first
            yield first, min(last + _PAGE, len(part))


def laid_out(
    shape: Shape, sources: Sequence[Path], over: int | None = None
) -> tuple[int, list[bytes]]:
    """Return memory as it was written down, one over the other, and the heads of each.

    The first is over the memory `over`, if there is one. Nobody can change it any more.
    """
    memory = empty_memory(shape)
    try:
        if over is not None:
            copy_sparse(over, memory)
        heads = []
        for source in sources:
            with open(source, "rb", buffering=0) as file:
                heads.append(_lay_out(file.fileno(), memory, shape.ram_bytes))
        seal(memory)
    except BaseException:
        os.close(memory)
        raise
    return memory, heads


def _lay_out(source: int, memory: int, size: int) -> bytes:
    at, end, heads = 0, os.fstat(source).st_size, []
    while at < end:
        head = os.pread(source, HEAD.size, at)
        offset, length = HEAD.unpack(head) if len(head) == HEAD.size else (size, 1)
        is_zero, length = bool(length & ZEROS), length & ~ZEROS
        at += HEAD.size
        last = at if is_zero else at + length
        if offset + length > size or last > end:
            raise HostError(
                "the saved memory is damaged, or of a machine of another size; take the snapshot "
                "again"
            )
        heads.append(head)
        os.lseek(memory, offset, os.SEEK_SET)
        if is_zero:
            _write_all(memory, bytes(length))
        while at < last:
            at += os.sendfile(memory, source, at, last - at)
    return b"".join(heads)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
