"""Whether machines have the processor's own help: proved by booting one, never assumed."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import CloisterError, HostError, RequestError, Unsupported
from cloister.model import quote
from cloister.runtime.microvm.machine import KVM, TCG, digest_of
from cloister.runtime.microvm.place import machine_directory, made_once
from cloister.runtime.microvm.program import find_kernel, find_qemu
from cloister.runtime.namespace.runtime import cell_binary
from cloister.runtime.telling import tell

SETTING = "CLOISTER_MICROVM_ACCEL"
DEVICE = Path("/dev/kvm")
# With help a machine boots in less than one second. Where the device opens and the machine then
# hangs, this is what finding out takes, once for each boot of the host.
PROOF_S = 15.0
_WORKS = "works"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MAX_WHY = 300


@dataclass(frozen=True, slots=True)
class Accelerator:
    """What machines are started with, and what is to be said of KVM."""

    name: str
    kvm: str


class Accelerators:
    """Finds out once for a process; what was found is kept for this boot of the host."""

    def __init__(self, prove: Callable[[], Awaitable[None]]) -> None:
        self._prove = prove
        self._finding: asyncio.Task[Accelerator] | None = None

    async def choose(self) -> Accelerator:
        """Return what is wanted and works; KVM that is asked for by name is not replaced."""
        wanted = wanted_accelerator()
        if wanted == TCG:
            return Accelerator(TCG, f"not tried: {SETTING} is {TCG}")
        if self._finding is None or (
            self._finding.done()
            and (self._finding.cancelled() or self._finding.exception() is not None)
        ):
            self._finding = asyncio.get_running_loop().create_task(self._find())
        found = await asyncio.shield(self._finding)
        if wanted == KVM and found.name != KVM:
            raise Unsupported(
                f"{SETTING} is {KVM} and KVM does not work here: {found.kvm}; set it to auto to "
                "have machines emulated"
            )
        return found

    async def _find(self) -> Accelerator:
        missing = why_absent()
        if missing is not None:
            return Accelerator(TCG, missing)
        name = await asyncio.to_thread(_verdict_name)
        said = await asyncio.to_thread(_read, name)
        if said is None:
            said = await self._try()
            await asyncio.to_thread(made_once, name, lambda to: _write(to, said))
        return Accelerator(KVM if said == _WORKS else TCG, said)

    async def _try(self) -> str:
        tell("finding out whether KVM works here, once for each boot of this host")
        try:
            await self._prove()
        except CloisterError as error:
            words = " ".join(str(error).split())
            return f"a machine did not boot with it: {words}"[:_MAX_WHY]
        return _WORKS


def wanted_accelerator() -> str:
    """Return what the person who runs this process asks for: auto, kvm or tcg."""
    given = os.environ.get(SETTING, "auto")
    if given not in ("auto", KVM, TCG):
        raise RequestError(f"{SETTING} is {quote(given)}; write auto, {KVM} or {TCG}")
    return given


def why_absent() -> str | None:
    """Return why there is nothing to try, or None."""
    try:
        status = DEVICE.stat()
    except OSError:
        return f"there is no {DEVICE}"
    return None if stat.S_ISCHR(status.st_mode) else f"{DEVICE} is no device"


def _verdict_name() -> str:
    """A verdict is about one boot of this host, one QEMU, one kernel and one launcher."""
    kernel, binary = find_kernel(), cell_binary().stat()
    if kernel is None:
        raise HostError("there is no kernel for machines; run `cloister setup microvm`")
    facts = (_BOOT.read_text(), find_qemu().key, kernel.key, binary.st_size, binary.st_mtime_ns)
    return f"{KVM}-{digest_of(*facts)}"


def _read(name: str) -> str | None:
    try:
        return (machine_directory() / name).read_text()[:_MAX_WHY]
    except FileNotFoundError:
        return None


def _write(to: Path, said: str) -> None:
    for old in to.parent.glob(f"{KVM}-*"):
        # Of an earlier boot, or of what was installed then.
        if "." not in old.name:
            old.unlink(missing_ok=True)
    to.write_text(said)
