"""What QEMU is told: one machine without a network, its disks and its memory as descriptors."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from cloister.runtime.microvm.program import LOADER
from cloister.runtime.plan import Kernel

# The descriptors that `cell execute` gives the program begin here.
_FIRST = 3
STATE = f"fd:{_FIRST + 3}"
# Where QEMU, its libraries and its firmware are in its own root.
_QEMU = "/qemu"
_MIB = 2**20
# What translated code may take; the rest of a machine's memory is counted as it is used.
TRANSLATION_BYTES = 64 * _MIB
# What is found in a guest for nobody: its kernel's own, and a share that grows with the memory.
_KERNEL_BYTES, _KERNEL_SHARE = 96 * _MIB, 48
_ALIGNED = 2 * _MIB

# Nothing nested; and four levels of pages, for with five and without the first the kernel of the
# machine cannot read its own names (QEMU 7.2, Linux 6.1).
_PROCESSOR = "max,la57=off,svm=off"
_HOST_PROCESSOR = "host,vmx=off,svm=off"
_DENIED = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"


# Emulated, or with the processor's own help.
TCG, KVM = "tcg", "kvm"
# In QEMU's own root; the name is built into it.
KVM_DEVICE = "dev/kvm"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a machine is made of, whoever it is for: the part that a booted one cannot change."""

    memory_bytes: int
    processors: int
    layers: int
    disk_bytes: int
    inodes: int
    # Whether the disk is one of the store's, which may have been another machine's before.
    is_kept: bool = False
    # Disks of directories that are shown, each of one size.
    shown: int = 0
    # Disks of volumes, by their sizes.
    volumes: tuple[int, ...] = ()
    accelerator: str = TCG

    @property
    def disks(self) -> int:
        """How many there are: to read, the scratch disk, those shown, volumes."""
        return self.layers + 1 + self.shown + len(self.volumes)

    @property
    def ram_bytes(self) -> int:
        """The memory of the machine: the sandbox's and its kernel's."""
        wanted = self.memory_bytes + _KERNEL_BYTES + self.memory_bytes // _KERNEL_SHARE
        return -(-wanted // _ALIGNED) * _ALIGNED


Shown = tuple[tuple[str, str], ...]


def shown_to(shape: Shape, directory: str, cell: str, kvm: str) -> Shown:
    """Return what QEMU sees of the host: itself, the launcher, and the device where it is used."""
    device = ((KVM_DEVICE, kvm),) if shape.accelerator == KVM else ()
    return (("qemu", directory), ("cell", cell), *device)


def empty_memory(shape: Shape) -> int:
    """Return a descriptor of memory for a machine of this shape, with nothing in it."""
    memory = os.memfd_create("machine", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, shape.ram_bytes)
    return memory


def restored(shape: Shape, shown: Shown, *, share: str = "off") -> Kernel:
    """Return the program of a machine that goes on from one that has booted.

    It is given: monitor, desk, memory, state, the layers, the scratch disk, those shown, volumes.
    Memory that is shared (`share` is "on") becomes what the file holds.
    """
    words = ["-incoming", "defer"]
    return _kernel(shape, 4, words, shown, share=share)


def booting(shape: Shape, shown: Shown, ticks_khz: int) -> Kernel:
    """Return the program of a machine that boots.

    It is given: monitor, desk, memory, kernel, first root, the layers, the scratch disk, those
    shown, volumes.
    """
    words = ["-kernel", f"/proc/self/fd/{_FIRST + 3}", "-initrd", f"/proc/self/fd/{_FIRST + 4}"]
    words += ["-append", command_line(shape, ticks_khz)]
    return _kernel(shape, 5, words, shown, share="on")


def command_line(shape: Shape, ticks_khz: int) -> str:
    """Return what the kernel and the first process of a machine that boots are told."""
    words = [
        "console=ttyS0",
        "loglevel=3",
        "panic=-1",
        # The first thing that Linux tries, a keyboard's controller, this machine does not have: it
        # would stand still instead of ending.
        "reboot=t",
        *([] if shape.accelerator == KVM else _emulated(ticks_khz)),
        "init_on_alloc=0",
        "edd=off",
        "rdinit=/cell",
        "--",
        "machine",
        str(shape.layers),
        *(["kept"] if shape.is_kept else []),
        *([f"shown={shape.shown}"] if shape.shown else []),
        *([f"volumes={len(shape.volumes)}"] if shape.volumes else []),
    ]
    return " ".join(words)


def _emulated(ticks_khz: int) -> list[str]:
    return [
        # This machine has no clock to measure the processor's counter with.
        f"tsc_early_khz={ticks_khz}",
        "tsc=reliable",
        "no_timer_check",
        # The processor is emulated: what these are against does not happen in it.
        "mitigations=off",
        # QEMU keeps what it has translated by address: with every program at another one each time
        # nearly all of it would be translated again at each start, and kept again.
        "norandmaps",
    ]


def _kernel(
    shape: Shape, before_disks: int, words: list[str], shown: Shown, *, share: str
) -> Kernel:
    count = before_disks + shape.disks
    log = _FIRST + count
    argv = ["/cell", "execute", str(count)]
    argv += [f"{_QEMU}/lib/{LOADER}", "--library-path", f"{_QEMU}/lib", f"{_QEMU}/qemu"]
    argv += ["-L", f"{_QEMU}/share", "-nodefaults", "-no-user-config", "-display", "none"]
    argv += ["-no-reboot", "-sandbox", _DENIED]
    # What is saved are the devices alone, without a word about the machine.
    argv += ["-global", "migration.send-configuration=off"]
    if shape.accelerator == KVM:
        argv += ["-accel", "kvm", "-cpu", _HOST_PROCESSOR]
    else:
        argv += ["-accel", f"tcg,tb-size={TRANSLATION_BYTES // _MIB}", "-cpu", _PROCESSOR]
    argv += ["-smp", str(shape.processors), "-m", f"{shape.ram_bytes // _MIB}M"]
    argv += [
        "-machine",
        "microvm,acpi=on,rtc=on,pit=off,pic=off,isa-serial=on,suppress-vmdesc=on,memory-backend=memory",
        "-object",
        f"memory-backend-file,id=memory,size={shape.ram_bytes},"
        f"mem-path=/proc/self/fd/{_FIRST + 2},share={share}",
        *("-chardev", "socket,id=wire,fd=0", "-device", "virtio-serial-device"),
        *("-device", "virtserialport,chardev=wire"),
        *("-chardev", f"socket,id=desk,fd={_FIRST + 1}", "-device", "virtserialport,chardev=desk"),
        *("-chardev", f"socket,id=monitor,fd={_FIRST}", "-mon", "chardev=monitor,mode=control"),
        *(
            "-add-fd",
            f"fd={log},set={log}",
            "-chardev",
            f"file,id=console,append=on,path=/dev/fdset/{log}",
        ),
        *("-serial", "chardev:console"),
    ]
    # What is synced inside is on the host's disk, where that is to outlive the machine.
    cache = "writeback" if shape.is_kept else "unsafe"
    for index in range(shape.disks):
        fd = _FIRST + before_disks + index
        only = "readonly=on"
        if index == shape.layers:
            only = f"cache={cache},auto-read-only=off"
        elif index >= shape.disks - len(shape.volumes):
            only = "cache=writeback,auto-read-only=off"
        argv += ["-add-fd", f"fd={fd},set={fd}"]
        argv += [
            "-drive",
            f"id=disk{index},file=/dev/fdset/{fd},format=raw,if=none,file.locking=off,{only}",
        ]
        argv += ["-device", f"virtio-blk-device,drive=disk{index}"]
    return Kernel(
        argv=(*argv, *words),
        shown=shown,
        made=(),
        capabilities=0,
    )


def digest_of(*parts: object) -> str:
    """Return a short name for something that is made of these."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
