"""Makes the disks of machines: read-only ones of directories, and empty ones of a hard size."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from cloister.errors import Exhausted
from cloister.model import format_bytes
from cloister.runtime.microvm.formatting import format_disk
from cloister.runtime.microvm.given_up import current_work
from cloister.runtime.microvm.place import machine_directory, made_once
from cloister.runtime.microvm.short_paths import require_short_paths
from cloister.runtime.namespace.rootfs import PUBLIC_ETC, synthetic_files
from cloister.runtime.telling import tell

# Beside what the files take: their names and where they lie, generously.
_SPARE_BYTES, _SPARE_SHARE, _SPARE_INODES = 64 * 2**20, 0.1, 1024
_BLOCK = 4096
# Of ext4: as many blocks as a block has bits, and inodes of 256 bytes.
_GROUP_BYTES, _INODES_A_BLOCK = 8 * _BLOCK * _BLOCK, _BLOCK // 256
_LEAST_INODES = 64
_FEATURES = "^resize_inode,^metadata_csum"
_DUG_BYTES = 64 * 1024
_MAX_COPIED = 16 * 2**20
_FICLONE = 0x4004_9409


def layer_image(directory: Path) -> Path:
    """Return a disk with what is in `directory`, made anew when any file of it has changed."""
    return made_once(f"layer-{_tree_key(directory)}.img", lambda to: write_tree(directory, to))


def smallest_root(cell: Path) -> Path:
    """Return a directory with one program that needs nothing else, to prove a machine with."""
    status = cell.stat()

    def make(to: Path) -> None:
        (to / "bin").mkdir(parents=True)
        shutil.copyfile(cell, to / "bin" / "cell")
        for path in (to, *to.rglob("*")):
            path.chmod(0o755)

    return made_once(f"smallest-{status.st_size}-{status.st_mtime_ns}", make)


def etc_image() -> Path:
    """Return a disk with the public part of /etc, and what a sandbox says about itself."""
    return made_once(etc_name(), _write_etc)


def etc_name() -> str:
    """Return what that disk is called now."""
    return f"etc-{_etc_key()}.img"


def etc_tree() -> Path:
    """Return a directory with the same, to compare with."""
    return made_once(f"etc-{_etc_key()}.tree", _lay_out_etc)


def empty_tree() -> Path:
    """Return a directory with nothing in it, to compare with."""
    return made_once("empty.tree", lambda to: to.mkdir(mode=0o755))


def _etc_key() -> str:
    digest = hashlib.sha256(repr(synthetic_files()).encode())
    for name in PUBLIC_ETC:
        path = Path("/etc", name)
        if path.exists():
            digest.update(_tree_key(path).encode())
    return digest.hexdigest()[:32]


def empty_image(size_bytes: int, inodes: int, *, journal: bool = False) -> Path:
    """Return an empty disk of this size, of which copies are made.

    With a `journal` it can be used again, however the machine ended that wrote to it.
    """
    kind = "journal" if journal else "empty"
    held = _held_inodes(size_bytes, inodes)

    def make(to: Path) -> None:
        write_disk(to, size_bytes, held, journal=journal)
        _dig(to)

    return made_once(f"{kind}-{size_bytes}-{held}.holes.img", make)


def _held_inodes(size_bytes: int, inodes: int) -> int:
    """Return a number that mke2fs does not make more of: it rounds up in each group of blocks."""
    groups = -(-size_bytes // _GROUP_BYTES)
    each = inodes // groups // _INODES_A_BLOCK * _INODES_A_BLOCK
    return max(each, _INODES_A_BLOCK) * groups


def _dig(image: Path) -> None:
    """Have holes where there are zeros: tables and a journal, which each copy would be made of."""
    dug = image.with_name(f"{image.name}.dug")
    try:
        with open(image, "rb") as source, open(dug, "xb") as to:
            size = os.fstat(source.fileno()).st_size
            to.truncate(size)
            for start, end in data_parts(source.fileno(), size):
                for at in range(start, end, _DUG_BYTES):
                    data = os.pread(source.fileno(), min(_DUG_BYTES, end - at), at)
                    if data.strip(b"\0"):
                        os.pwrite(to.fileno(), data, at)
        os.rename(dug, image)
    finally:
        dug.unlink(missing_ok=True)


def write_disk(
    to: Path,
    size_bytes: int,
    inodes: int,
    directory: Path | None = None,
    *,
    journal: bool = False,
    owner: tuple[int, int] = (0, 0),
) -> None:
    """Write a new disk, empty or with what is in a directory; its top belongs to `owner`.

    A small one has fewer files than were allowed: their table would be most of it.
    """
    most = max(_LEAST_INODES, size_bytes // _BLOCK)
    _format(to, size_bytes, min(inodes, most), directory, journal=journal, owner=owner)


def copy_of(image: Path, *, near: bool = False) -> int:
    """Return a descriptor of a copy that has no name, and so is gone with its last holder.

    It is where machines keep their things, or `near` the image, where it may share its blocks.
    """
    source = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
    try:
        copy = _nameless(image.parent if near else machine_directory())
        try:
            copy_sparse(source, copy)
        except BaseException:
            os.close(copy)
            raise
        return copy
    finally:
        os.close(source)


def _nameless(directory: Path) -> int:
    flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(directory, flags, 0o600)
    except OSError:
        # Sealed trees take no new files.
        return os.open(machine_directory(), flags, 0o600)


def named_copy(source: Path, to: Path) -> int:
    """Return a descriptor of a copy under a name, which nobody has yet."""
    given = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        copy = os.open(to, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            copy_sparse(given, copy)
        except BaseException:
            os.close(copy)
            to.unlink()
            raise
        return copy
    finally:
        os.close(given)


def copy_sparse(source: int, to: int) -> None:
    """Copy a file of which most is not there; holes stay holes."""
    size = os.fstat(source).st_size
    try:
        fcntl.ioctl(to, _FICLONE, source)
    except OSError:
        # Not a filesystem that shares blocks, or not the same one.
        os.ftruncate(to, size)
    else:
        return
    for start, end in data_parts(source, size):
        os.lseek(to, start, os.SEEK_SET)
        while start < end:
            start += os.sendfile(to, source, start, end - start)


def data_parts(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield where a file of which most is not there has something, and where that ends."""
    end = 0
    while end < size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError:
            return
        end = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, end


def _tree_key(top: Path) -> str:
    digest = hashlib.sha256(f"{top}\0".encode("utf-8", "surrogateescape"))
    if not top.is_dir():
        _add_status(digest, top.name, os.lstat(top))
    for path, directories, files in os.walk(top):
        directories.sort()
        _add_status(digest, path, os.lstat(path))
        for name in sorted(files):
            _add_status(digest, name, os.lstat(os.path.join(path, name)))
    return digest.hexdigest()[:32]


def _add_status(digest: hashlib._Hash, name: str, status: os.stat_result) -> None:
    # Links and sizes of directories say nothing that their times do not.
    facts = (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, status.st_ino)
    digest.update(f"{name}\0{facts}\0".encode("utf-8", "surrogateescape"))


def write_tree(directory: Path, to: Path, hidden: Sequence[str] = ()) -> None:
    """Write a disk as large as what is in a directory; what is `hidden` there is empty on it."""
    used, count = _BLOCK, 1
    # Before it is walked: that goes as deep as the tree does.
    require_short_paths(directory, hidden)
    work = current_work()
    for path, directories, files in os.walk(directory):
        work.require_wanted()
        for name in (*directories, *files):
            status = os.lstat(os.path.join(path, name))
            used += (
                -(-status.st_size // _BLOCK) * _BLOCK if stat.S_ISREG(status.st_mode) else _BLOCK
            )
            count += 1
    size = int(used * (1 + _SPARE_SHARE)) + _SPARE_BYTES
    tell(f"making a disk of {directory} for machines, once ({format_bytes(size >> 20 << 20)})")
    free = shutil.disk_usage(to.parent).free
    if free < size:
        raise Exhausted(
            f"{to.parent} has {format_bytes(free)} left and a disk with {directory} needs "
            f"{format_bytes(size)}; make room there",
            limit="disk",
        )
    _format(to, size, count + _SPARE_INODES, directory, hidden=hidden)


def _write_etc(to: Path) -> None:
    with tempfile.TemporaryDirectory(dir=to.parent, prefix="etc.") as directory:
        top = Path(directory, "top")
        _lay_out_etc(top)
        write_tree(top, to)


def _lay_out_etc(top: Path) -> None:
    top.mkdir()
    top.chmod(0o755)
    for name in PUBLIC_ETC:
        _copy_public(Path("/etc", name), top / name)
    for name, mode, content in synthetic_files():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        path.chmod(mode)


def _copy_public(source: Path, to: Path) -> None:
    """Copy what everybody may read, links as they are."""
    try:
        status = os.lstat(source)
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode):
        to.parent.mkdir(parents=True, exist_ok=True)
        to.symlink_to(os.readlink(source))
    elif stat.S_ISDIR(status.st_mode) and status.st_mode & 0o005 == 0o005:
        to.mkdir(parents=True, exist_ok=True)
        for each in sorted(os.listdir(source)):
            _copy_public(source / each, to / each)
    elif stat.S_ISREG(status.st_mode) and status.st_mode & 0o004 and status.st_size < _MAX_COPIED:
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, to)
        to.chmod(stat.S_IMODE(status.st_mode) & 0o755)


def _format(
    to: Path,
    size_bytes: int,
    inodes: int,
    directory: Path | None,
    *,
    journal: bool = False,
    owner: tuple[int, int] = (0, 0),
    hidden: Sequence[str] = (),
) -> None:
    if directory is not None:
        require_short_paths(directory, hidden)
    with open(to, "xb") as file:
        file.truncate(size_bytes // _BLOCK * _BLOCK)
    words = ["-q", "-F", "-t", "ext4", "-b", str(_BLOCK), "-m", "0"]
    words += ["-O", _FEATURES if journal else f"^has_journal,{_FEATURES}"]
    whose = f"root_owner={owner[0]}:{owner[1]}"
    words += ["-E", f"lazy_itable_init=1,nodiscard,{whose}", "-N", str(inodes)]
    format_disk(to, words, directory, hidden)
