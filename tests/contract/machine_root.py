"""A small root for machines: the programs that tests start, and what those need of the host."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from cloister.runtime.microvm.program import find_program

# Beside what make setup has put there; the same each time, so that disks of it are made once.
PLACE = Path(__file__).parents[2] / ".venv" / "state" / "microvm"
_PROGRAMS = (
    *("bash", "sh", "cat", "chmod", "chown", "cp", "date", "dd", "echo", "env", "false", "find"),
    *("flock", "grep", "head", "id", "kill", "ln", "ls", "mkdir", "mkfifo", "mv", "od", "pkill"),
    *("printenv", "printf", "ps", "pwd", "python3", "rm", "seq", "setpriv", "setsid", "sha256sum"),
    *("sleep", "sort", "stat", "stty", "sync", "tail", "tee", "test", "timeout", "touch", "tr"),
    *("true", "truncate", "tty", "uname", "wc", "yes"),
)
_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")
_STAMP = "6"


def has_machines() -> bool:
    """Whether QEMU is here, and the kernel that `make setup` unpacks; as root, whose it is."""
    return os.geteuid() == 0 and find_program() is not None and (PLACE / "kernel").is_dir()


@cache
def make_disks() -> None:
    """Have the disk of the host's programs, which takes minutes once: no request waits so long."""
    command = [sys.executable, "-m", "cloister", "setup", "microvm"]
    environment = {**os.environ, "CLOISTER_MICROVM": str(PLACE)}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def machine_root() -> Path:
    """Return the root, made if it is not there."""
    root = PLACE / "root"
    stamp = PLACE / "root.made"
    if stamp.exists() and stamp.read_text() == _STAMP:
        return root
    shutil.rmtree(root, ignore_errors=True)
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "etc" / "passwd").write_text(
        "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:\n"
    )
    (root / "etc" / "hostname").write_text("sandbox\n")
    (root / "etc" / "group").write_text("root:x:0:\nuser:x:1000:\n")
    for name in ("bin", "lib", "lib64"):
        (root / "usr" / name).mkdir(exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    for name in _PROGRAMS:
        _add(root, name)
    _add_python(root)
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755)
    stamp.write_text(_STAMP)
    return root


def _add(root: Path, name: str) -> None:
    found = shutil.which(name, path="/usr/bin:/bin")
    if found is None:
        return
    _copy(root, Path(os.path.realpath(found)), root / "usr" / "bin" / name)


def _copy(root: Path, source: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, to)
    done = subprocess.run(["ldd", source], capture_output=True, text=True)
    for library in _LIBRARY.findall(done.stdout):
        place = root / str(Path(library).parent).lstrip("/") / Path(library).name
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(os.path.realpath(library), place)


def _add_python(root: Path) -> None:
    words = "import sysconfig; print(sysconfig.get_path('stdlib'))"
    done = subprocess.run(["/usr/bin/python3", "-c", words], capture_output=True, text=True)
    library = Path(done.stdout.strip())
    unused = shutil.ignore_patterns("test", "tests", "idlelib", "lib2to3", "ensurepip", "config-*")
    to = root / str(library).lstrip("/")
    shutil.copytree(library, to, ignore=unused, symlinks=True, dirs_exist_ok=True)
    for module in to.glob("lib-dynload/*.so"):
        _copy(root, library / "lib-dynload" / module.name, module)
