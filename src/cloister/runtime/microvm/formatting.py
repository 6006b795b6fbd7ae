"""Runs mke2fs behind a wall of its own: strangers chose the names and bytes that it reads."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from cloister.errors import HostError
from cloister.runtime.microvm.given_up import current_work
from cloister.runtime.microvm.place import made_once
from cloister.runtime.microvm.program import LOADER, TOOLS, copy_file, file_key, libraries_of
from cloister.runtime.namespace.ids import DISK_MAKER, IdPool, find_sub_ids
from cloister.runtime.namespace.instance import runtime_directory
from cloister.runtime.namespace.runtime import cell_binary

PROGRAM = "mke2fs"
_CONFIGURATION = Path("/etc/mke2fs.conf")
# All of a large host's programs on a busy machine; who needs longer does something else.
_FORMAT_S = 3600.0
_MOST_SAID_BYTES = 16 * 1024
# Where `cell format` shows the program, the tree and the disk.
_FILES, _TREE, _DISK = "/files", "/tree", "/out"


def format_disk(
    disk: Path, words: Sequence[str], directory: Path | None, hidden: Sequence[str] = ()
) -> None:
    """Have mke2fs make the filesystem on a file that is there, with what is in a directory.

    Of that it finds what is `hidden`, paths below it, empty and for nobody.
    """
    tree = [] if directory is None else ["-d", _TREE]
    enclosed(program_files(), disk, directory, [*words, *tree, _DISK], hidden)


def enclosed(
    files: Path,
    disk: Path,
    directory: Path | None,
    words: Sequence[str],
    hidden: Sequence[str] = (),
) -> None:
    """Execute the program in `files` where it sees that, the disk and the directory alone.

    It has ids of its own, no network, no other process, only the file as large as it is to write
    to, and ends with us. What it says is read up to a limit.
    """
    loader = [f"{_FILES}/lib/{LOADER}", "--library-path", f"{_FILES}/lib", f"{_FILES}/{PROGRAM}"]
    tree = "-" if directory is None else os.path.realpath(directory)
    places = [os.path.realpath(files), os.path.realpath(disk), tree, str(len(hidden)), *hidden]
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        # What does not fit into the pipe is lost: nobody reads while it runs.
        with ids_for(directory, hidden) as ids:
            code = _finished(
                [str(cell_binary()), "format", *ids, *places, *loader, *words], writing
            )
        said = _said(reading)
    except subprocess.TimeoutExpired:
        raise HostError(
            f"a disk for the machine was not made within {_FORMAT_S:.0f} s; use a smaller image, "
            "or try again when this host is less busy"
        ) from None
    finally:
        os.close(reading)
        os.close(writing)
        if os.geteuid() == 0:
            os.chown(disk, 0, 0)
    if code != 0:
        raise HostError(f"a disk for the machine could not be made: {said}; see docs/runtimes.md")


def _finished(command: Sequence[str], output: int) -> int:
    """Return how it ended; whoever has given this up has it killed."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={"LC_ALL": "C"}
    ) as process:
        try:
            with current_work().waiting_for(process):
                return process.wait(_FORMAT_S)
        except BaseException:
            process.kill()
            raise


@contextlib.contextmanager
def ids_for(directory: Path | None, hidden: Sequence[str] = ()) -> Iterator[tuple[str, ...]]:
    """Lend ids that nothing else has, in the words of `cell format`.

    An ordinary user's are one of their sub-ids; without any, or where it could not read all of the
    directory, their own.
    """
    if os.geteuid() == 0:
        yield ("range", str(DISK_MAKER))
        return
    sub_ids = find_sub_ids()
    if sub_ids is None or (directory is not None and not _readable_by_another(directory, hidden)):
        yield ("own",)
        return
    pool = IdPool.of_person(runtime_directory() / "ids", sub_ids.count)
    try:
        ranges = (",".join(f"{first}+{n}" for first, n in r) for r in (sub_ids.uids, sub_ids.gids))
        yield ("slice", str(pool.take()), *ranges, sub_ids.uid_helper, sub_ids.gid_helper)
    finally:
        pool.close()


def _readable_by_another(directory: Path, hidden: Sequence[str] = ()) -> bool:
    """Whether what is not hidden is ours in both ways, which capabilities reach, or everybody's."""
    own = (os.geteuid(), os.getegid())
    passed_over = {os.path.join(directory, path) for path in hidden}
    for place, directories, files in os.walk(directory):
        directories[:] = [each for each in directories if f"{place}/{each}" not in passed_over]
        for name in (*directories, *files, "."):
            if f"{place}/{name}" in passed_over:
                continue
            status = os.lstat(os.path.join(place, name))
            needed = 0o005 if stat.S_ISDIR(status.st_mode) else 0o004
            is_read = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
            is_open = status.st_mode & needed == needed
            if is_read and not is_open and (status.st_uid, status.st_gid) != own:
                return False
    return True


def _said(reading: int) -> str:
    try:
        text = os.read(reading, _MOST_SAID_BYTES).decode("utf-8", "replace")
    except BlockingIOError:
        return "it did not say why"
    shown = "".join(each if each.isprintable() else " " for each in text)
    return shown.strip()[-500:]


def program_files() -> Path:
    """Return a directory with mke2fs, its libraries and its settings: all it sees of this host."""
    found = shutil.which(PROGRAM, path=TOOLS)
    if found is None:
        raise HostError("mke2fs is not installed; install e2fsprogs")
    program = Path(os.path.realpath(found))
    configuration = _CONFIGURATION.read_bytes() if _CONFIGURATION.exists() else b""
    key = hashlib.sha256(configuration + file_key(program).encode()).hexdigest()[:16]
    return made_once(f"{PROGRAM}-{key}", lambda to: _copy_program(program, configuration, to))


def _copy_program(program: Path, configuration: bytes, to: Path) -> None:
    (to / "lib").mkdir(parents=True)
    copy_file(program, to / PROGRAM)
    for library in libraries_of(program):
        copy_file(library, to / "lib" / library.name)
    (to / "mke2fs.conf").write_bytes(configuration)
    for path in (to, *to.rglob("*")):
        # It runs under ids that own nothing here.
        path.chmod(0o755)
