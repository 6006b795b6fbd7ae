"""Runs tests as an ordinary user: `run_as_user.py ranges|single|bare [pytest arguments]`, as root.

"ranges" is a user with sub-ids in /etc/subuid and /etc/subgid, "single" one without any, and "bare"
one with sub-ids to whom no control groups are given. They are made if they are missing, and
work on a copy: a checkout in root's home is not theirs to read.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
USERS = {"ranges": "cloister-test", "single": "cloister-single", "bare": "cloister-bare"}
RANGE = 65_536
# Far above what useradd hands out by itself, below the ranges of systemd's table.
FIRST_RANGES = {"ranges": 400_000_000, "bare": 400_100_000}
# What tests do not need, and what is large.
LEFT_OUT = ("mypy*", "ruff*", "pip*", "setuptools*", "sandlock*", "__pycache__", "*.pth")


def main(arguments: list[str]) -> int:
    if len(arguments) < 1 or arguments[0] not in USERS:
        print("run_as_user: name a kind of user, ranges, single or bare", file=sys.stderr)
        return 2
    if os.geteuid() != 0:
        print("run_as_user: needs root, to become somebody else", file=sys.stderr)
        return 2
    kind, pytest_arguments = arguments[0], arguments[1:]
    user = ensure_user(USERS[kind], FIRST_RANGES.get(kind))
    if kind != "bare":
        delegate_groups(user)
    with tempfile.TemporaryDirectory(prefix="cloister-tests-") as name:
        place = Path(name)
        # mkdtemp makes it for its owner alone.
        place.chmod(0o755)
        copy_checkout(place)
        private = place / "private"
        private.mkdir(mode=0o700)
        os.chown(private, user.pw_uid, user.pw_gid)
        return run(user, place, private, pytest_arguments)


def ensure_user(name: str, first_id: int | None) -> pwd.struct_passwd:
    """Return the user, made if it is missing; a system user, which gets no sub-ids by itself."""
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", name]
        subprocess.run(command, check=True)
        user = pwd.getpwnam(name)
    for option, file in (("--add-subuids", "/etc/subuid"), ("--add-subgids", "/etc/subgid")):
        if first_id is not None and not has_range(name, Path(file)):
            span = f"{first_id}-{first_id + RANGE - 1}"
            subprocess.run(["usermod", option, span, name], check=True)
        if first_id is None and has_range(name, Path(file)):
            raise SystemExit(f"run_as_user: {name} has sub-ids in {file}; remove them")
    return user


def has_range(name: str, file: Path) -> bool:
    lines = file.read_text().splitlines() if file.exists() else []
    return any(line.startswith(f"{name}:") for line in lines)


def delegate_groups(user: pwd.struct_passwd) -> None:
    """Give the user control groups, by the command that everybody uses for it."""
    command = [sys.executable, "-m", "cloister", "setup", "--user", user.pw_name]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)


def copy_checkout(place: Path) -> None:
    """Copy what the tests read to a place that everybody can read."""
    ignore = shutil.ignore_patterns("__pycache__")
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, place / folder, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", place)
    kernel = ROOT / ".venv" / "state" / "microvm" / "kernel"
    if kernel.is_dir():
        shutil.copytree(kernel, place / "kernel", symlinks=True, copy_function=link_or_copy)
    packages = sysconfig.get_path("purelib")
    left_out = shutil.ignore_patterns(*LEFT_OUT)
    shutil.copytree(packages, place / "packages", ignore=left_out, copy_function=link_or_copy)


def link_or_copy(source: str, target: str) -> None:
    """Have a file of root's, which nobody else may write to, in another place too."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def run(user: pwd.struct_passwd, place: Path, private: Path, pytest_arguments: list[str]) -> int:
    """Run pytest as the user, with nothing of root's in the environment."""
    become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(private),
        "LANG": "C.UTF-8",
        "XDG_RUNTIME_DIR": str(private),
        "PYTHONPATH": f"{place / 'src'}:{place / 'packages'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_ADDOPTS": os.environ.get("PYTEST_ADDOPTS", "-p no:cacheprovider"),
    }
    if (place / "kernel").is_dir():
        environment["CLOISTER_MICROVM_KERNEL"] = str(place / "kernel")
    python = readable_python(become)
    basetemp = f"--basetemp={private / 'tests'}"
    command = [*become, python, "-m", "pytest", basetemp, *pytest_arguments]
    return subprocess.run(command, cwd=place, env=environment).returncode


def readable_python(become: list[str]) -> str:
    """Return an interpreter that this user may execute: ours may live in root's home."""
    # It must be able to start itself again: the first start is still made with root's rights.
    again = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', '']))"
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        tried = subprocess.run([*become, python, "-c", again], stderr=subprocess.DEVNULL, cwd="/")
        if tried.returncode == 0:
            return python
    raise SystemExit("run_as_user: no python3 that an ordinary user may execute; install one")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
