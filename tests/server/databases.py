"""A PostgreSQL of the tests' own: in a directory, on a unix socket, as an ordinary user."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MISSING = "no PostgreSQL is installed; `make setup` installs it where apt can"


def programs() -> Path | None:
    """Where initdb and pg_ctl are, of the newest release that is installed."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3])
    )
    return found[-1].parent if found else None


@contextmanager
def postgresql(place: Path) -> Iterator[str]:
    """Start one, and return the URL of an empty database; nothing is left of it afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="clo-pg-"))
    # The database refuses to run as root.
    who = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    os.chown(directory, who.pw_uid, -1)
    as_user = {"user": who.pw_uid} if os.geteuid() == 0 else {}
    data, log = directory / "data", directory / "log"
    options = f"-k {directory} -c listen_addresses= -c fsync=off"

    def call(program: str, *words: str) -> None:
        done = subprocess.run(
            [str(place / program), *words],
            cwd="/",
            env={"LC_ALL": "C", "PATH": os.environ["PATH"]},
            stdout=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            **as_user,
        )
        assert done.returncode == 0, (done.stdout, log.read_text() if log.exists() else "")

    try:
        call("initdb", "-D", str(data), "-U", "cloister", "-A", "trust", "-E", "UTF8", "-N")
        control = ("-D", str(data), "-l", str(log), "-w", "-t", "120")
        call("pg_ctl", "start", *control, "-o", options)
        try:
            yield f"postgresql://cloister@/postgres?host={directory}"
        finally:
            call("pg_ctl", "stop", *control, "-m", "immediate")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
