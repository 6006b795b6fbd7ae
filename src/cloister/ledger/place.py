"""Where ledgers, checkpoints and keys lie below the state directory, and who may read them."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from cloister.errors import HostError, NotFound
from cloister.model import parse_name, quote

_FILE = re.compile(r"[0-9]{4,9}\.jsonl")


def ledger_directory(state: Path, sandbox: str) -> Path:
    """Return where the entries of a sandbox (or of what is kept under a name) lie."""
    return state / "ledger" / parse_name(sandbox, "sandbox")


def checkpoint_file(state: Path, sandbox: str) -> Path:
    """Return the second place of a ledger's checkpoints, which outlives the ledger."""
    return state / "checkpoints" / f"{parse_name(sandbox, 'sandbox')}.jsonl"


def key_directory(state: Path) -> Path:
    """Return where the signing key and the public keys that are trusted lie."""
    return state / "keys"


def list_ledgers(state: Path) -> list[str]:
    """Return the names of all ledgers, the one written last at the end."""
    try:
        with os.scandir(state / "ledger") as entries:
            found = [
                (entry.stat(follow_symlinks=False).st_mtime_ns, entry.name)
                for entry in entries
                if entry.is_dir(follow_symlinks=False)
            ]
    except FileNotFoundError:
        return []
    return [name for _, name in sorted(found)]


def list_files(directory: Path) -> list[Path]:
    """Return the files of a ledger in their order."""
    try:
        names = [name for name in os.listdir(directory) if _FILE.fullmatch(name)]
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(
            f"no ledger of {quote(directory.name)}; `cloister ledger list` names them all",
            what=directory.name,
        ) from None
    return [directory / name for name in sorted(names, key=file_number)]


def file_number(name: str) -> int:
    """Return the number of a file of a ledger."""
    return int(name.partition(".")[0])


def file_name(number: int) -> str:
    """Return the name of the file of that number."""
    return f"{number:04}.jsonl"


def make_private(path: Path) -> None:
    """Make a directory that only its owner may enter, or check that it is one."""
    try:
        os.mkdir(path, 0o700)
        return
    except FileExistsError:
        found = os.lstat(path)
    except FileNotFoundError:
        make_private(path.parent)
        make_private(path)
        return
    except OSError as error:
        raise HostError(f"{path} cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise HostError(f"{path} belongs to somebody else; set CLOISTER_STATE to one of yours")
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.chmod(path, 0o700)


def open_existing(path: Path) -> int:
    """Open a file to read; nothing but a regular file that is no link is opened."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise HostError(f"{path} is a link; a ledger holds files only") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise HostError(f"{path} is not a regular file; a ledger holds files only")
    return fd
