"""The memory of a machine as a list of the pages that are not zeros: written down, and laid out."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

from cloister.errors import HostError
from cloister.runtime.microvm.machine import Shape, empty_memory
from cloister.runtime.microvm.template import seal
from cloister.runtime.namespace.runtime import cell_binary

_HEAD = struct.Struct("<QQ")
_WRITE_S = 120.0
_MAX_SAID = 500


def write_pages(pid: int, base: int, to: Path) -> None:
    """Write down what is in the memory of a QEMU that stands still and began from `base`.

    Not by QEMU, which would look at every page of it and so have each one made.
    """
    command = [str(cell_binary()), "pages", str(pid)]
    # A descriptor of its own: where it is read is nobody else's affair.
    source = os.open(f"/proc/self/fd/{base}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        out = os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            command += [str(source), str(out)]
            done = subprocess.run(
                command, pass_fds=(source, out), capture_output=True, timeout=_WRITE_S
            )
        finally:
            os.close(out)
    except subprocess.TimeoutExpired:
        raise HostError(
            f"the memory of the machine was not written within {_WRITE_S:.0f} s; try again when "
            "this host is less busy"
        ) from None
    finally:
        os.close(source)
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()[-_MAX_SAID:]
        raise HostError(f"the memory of the machine could not be written: {said}; see `cell pages`")


def laid_out(shape: Shape, source: Path) -> int:
    """Return a descriptor of memory as it was written down, which nobody can change any more."""
    memory = empty_memory(shape)
    try:
        with open(source, "rb", buffering=0) as file:
            _lay_out(file.fileno(), memory, shape.ram_bytes)
        seal(memory)
    except BaseException:
        os.close(memory)
        raise
    return memory


def _lay_out(source: int, memory: int, size: int) -> None:
    at, end = 0, os.fstat(source).st_size
    while at < end:
        head = os.pread(source, _HEAD.size, at)
        offset, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (size, 1)
        at += _HEAD.size
        if offset + length > size or at + length > end:
            raise HostError(
                "the saved memory is damaged, or of a machine of another size; take the snapshot "
                "again"
            )
        os.lseek(memory, offset, os.SEEK_SET)
        last = at + length
        while at < last:
            at += os.sendfile(memory, source, at, last - at)
