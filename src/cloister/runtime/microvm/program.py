"""Finds QEMU and a kernel on this host, and lays out the files that QEMU is shown."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cloister.errors import HostError
from cloister.runtime.microvm.place import machine_place, made_once

KERNEL_SETTING = "CLOISTER_MICROVM_KERNEL"
INSTALL = "run `cloister setup microvm`, or install qemu-system-x86 and linux-image-cloud-amd64"
NO_KERNEL = f"there is no kernel for machines; {INSTALL}"
NO_NAMED_KERNEL = (
    f"{KERNEL_SETTING} names a directory without boot/vmlinuz-RELEASE and lib/modules/RELEASE; "
    "name another, or leave it out"
)
AGAIN = "run `apt-get install --reinstall qemu-system-x86`"
_BROKEN = f"it is broken; {AGAIN}, or remove it"
_PLACES = ("/usr/local/bin", "/usr/bin", "/bin")
_QEMU = "qemu-system-x86_64"
_VERSION = re.compile(r"emulator version (\S{1,64})")
_RELEASE = re.compile(r"vmlinuz-(\S{1,128})")
_ASK_S = 20.0
_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")
_FIRMWARE = ("bios-microvm.bin", "linuxboot_dma.bin", "pvh.bin", "kvmvapic.bin")
_FIRMWARE_PLACES = ("/usr/share/seabios", "/usr/share/qemu", "/usr/local/share/qemu")
# The emulator is a module of its own where a distribution builds QEMU in parts.
_MODULES = ("accel-tcg-x86_64.so",)
_MODULE_DIRECTORY = "lib/x86_64-linux-gnu/qemu"


@dataclass(frozen=True, slots=True)
class Qemu:
    """One installed QEMU; `key` changes with the program."""

    path: Path
    version: str
    key: str


@dataclass(frozen=True, slots=True)
class MachineKernel:
    """A kernel for machines, with the modules of its release."""

    image: Path
    modules: Path
    release: str
    key: str


def find_program() -> Path | None:
    """Return QEMU's program, if there is one."""
    for place in _PLACES:
        path = Path(place, _QEMU)
        if os.access(path, os.X_OK):
            return Path(os.path.realpath(path))
    found = shutil.which(_QEMU)
    return None if found is None else Path(os.path.realpath(found))


def why_not() -> str | None:
    """Return what this host lacks for a machine, or None."""
    if find_program() is None:
        return f"{_QEMU} is not installed; {INSTALL}"
    if shutil.which("mke2fs", path=TOOLS) is None:
        return "mke2fs is not installed; install e2fsprogs"
    if find_kernel() is None:
        return NO_NAMED_KERNEL if os.environ.get(KERNEL_SETTING) else NO_KERNEL
    return None


TOOLS = "/usr/sbin:/sbin:/usr/bin:/bin"


@cache
def find_qemu() -> Qemu:
    """Return QEMU, or raise HostError saying how to have it."""
    path = find_program()
    if path is None:
        raise HostError(f"{_QEMU} is not installed; {INSTALL}")
    try:
        done = subprocess.run([path, "--version"], capture_output=True, timeout=_ASK_S)
    except OSError as error:
        raise HostError(f"{path} does not start: {error.strerror}; {_BROKEN}") from error
    except subprocess.TimeoutExpired:
        raise HostError(
            f"{path} did not say its version within {_ASK_S:.0f} s; {_BROKEN}"
        ) from None
    version = _VERSION.search(done.stdout.decode("utf-8", "replace"))
    if version is None:
        raise HostError(f"{path} does not say its version; {_BROKEN}")
    return Qemu(path, version[1], file_key(path))


def find_kernel() -> MachineKernel | None:
    """Return the newest kernel for machines: the one that is named, ours, or the host's.

    Ours is in the state directory, or came with the installation, as `make setup` has it.
    """
    given = os.environ.get(KERNEL_SETTING)
    installed = Path(sys.prefix, "state", "microvm", "kernel")
    places = [Path(given)] if given else [machine_place() / "kernel", installed, Path("/")]
    for place in places:
        images = sorted(place.glob("boot/vmlinuz-*"), key=lambda path: _numbers(path.name))
        # Of the host's own kernels only those that are made for machines are known to fit.
        if not given and place == Path("/"):
            images = [path for path in images if "cloud" in path.name]
        for image in reversed(images):
            release = _RELEASE.fullmatch(image.name)
            for modules in ("lib/modules", "usr/lib/modules"):
                if release and (directory := place / modules / release[1]).is_dir():
                    return MachineKernel(image, directory, release[1], file_key(image))
    return None


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"\d+", name))


def file_key(path: Path) -> str:
    """Return a short name for one version of a program."""
    status = path.stat()
    text = f"{path}\0{status.st_size}\0{status.st_mtime_ns}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def qemu_files(qemu: Qemu) -> Path:
    """Return a directory with QEMU, its libraries and firmware: all it sees of this host."""
    return made_once(f"qemu-{qemu.key}", lambda to: _copy_qemu(qemu, to))


def _copy_qemu(qemu: Qemu, to: Path) -> None:
    for name in ("lib", "share", _MODULE_DIRECTORY):
        (to / name).mkdir(parents=True, exist_ok=True)
    copy_file(qemu.path, to / "qemu")
    modules = [Path("/usr", _MODULE_DIRECTORY, name) for name in _MODULES]
    for module in filter(Path.exists, modules):
        copy_file(module, to / _MODULE_DIRECTORY / module.name)
    for program in (qemu.path, *filter(Path.exists, modules)):
        for library in libraries_of(program):
            if not (to / "lib" / library.name).exists():
                copy_file(library, to / "lib" / library.name)
    for name in _FIRMWARE:
        for place in _FIRMWARE_PLACES:
            if Path(place, name).exists():
                copy_file(Path(place, name), to / "share" / name)
                break
    if not (to / "share" / _FIRMWARE[0]).exists():
        raise HostError(f"QEMU's firmware {_FIRMWARE[0]} is missing; {INSTALL}")
    for path in (to, *to.rglob("*")):
        # It runs under ids that own nothing here.
        path.chmod(0o755)


def copy_file(source: Path, to: Path) -> None:
    """Copy what a name leads to."""
    shutil.copyfile(os.path.realpath(source), to)


def libraries_of(program: Path) -> list[Path]:
    """Return the files that a program is loaded with."""
    done = subprocess.run(
        ["ldd", program], capture_output=True, timeout=_ASK_S, env={"PATH": TOOLS, "LC_ALL": "C"}
    )
    return [Path(path) for path in _LIBRARY.findall(done.stdout.decode("utf-8", "replace"))]


LOADER = "ld-linux-x86-64.so.2"
