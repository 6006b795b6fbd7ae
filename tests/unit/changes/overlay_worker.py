"""Edits trees through real overlay mounts, in a mount namespace of its own: one request a line."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import shutil
import socket
import stat
import subprocess
import sys

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = ANSWERS[request.pop("do")](**request)
        except OSError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


def mount(lowers: list[str], upper: str, work: str, target: str) -> dict[str, object]:
    options = f"lowerdir={':'.join(lowers)},upperdir={upper},workdir={work},userxattr"
    done = _libc.mount(b"overlay", target.encode(), b"overlay", 0, options.encode())
    return {} if done == 0 else {"error": os.strerror(ctypes.get_errno())}


def unmount(target: str) -> dict[str, object]:
    done = _libc.umount2(target.encode(), 0)
    return {} if done == 0 else {"error": os.strerror(ctypes.get_errno())}


def shell(at: str, script: str) -> dict[str, object]:
    ran = subprocess.run(["bash", "-ec", script], cwd=at, capture_output=True, text=True)
    return {"status": ran.returncode, "stderr": ran.stderr}


def edit(at: str, edits: list[list[str]]) -> dict[str, object]:
    """Make each edit, or leave it where the tree does not allow it; names are base64."""
    for verb, encoded, *rest in edits:
        path = os.fsencode(at) + b"/" + base64.b64decode(encoded)
        with contextlib.suppress(OSError):
            EDITS[verb](path, *(base64.b64decode(word) for word in rest))
    return {}


def read(at: str) -> dict[str, object]:
    """Everything in a tree, by base64 path: type, mode, and content, target or nothing."""
    found: dict[str, list[object]] = {}
    top = os.fsencode(at)
    for directory, names, files in os.walk(top):
        for name in (*names, *files):
            path = os.path.join(directory, name)
            found[base64.b64encode(path[len(top) :]).decode()] = _read_one(path)
    return {"tree": found}


def _read_one(path: bytes) -> list[object]:
    status = os.lstat(path)
    mode, data, xattr = stat.S_IMODE(status.st_mode), b"", b""
    if stat.S_ISLNK(status.st_mode):
        data = os.readlink(path)
    elif stat.S_ISREG(status.st_mode):
        with open(path, "rb") as file:
            data = file.read()
    if "user.test" in os.listxattr(path, follow_symlinks=False):
        xattr = b"=" + os.getxattr(path, "user.test", follow_symlinks=False)
    kind = stat.S_IFMT(status.st_mode)
    return [kind, mode, base64.b64encode(data).decode(), base64.b64encode(xattr).decode()]


def _write(path: bytes, content: bytes) -> None:
    # Without O_NONBLOCK a pipe of that name would wait for a reader for ever.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
    handle = os.open(path, flags, 0o644)
    try:
        os.write(handle, content)
    finally:
        os.close(handle)


def _remove(path: bytes) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _touch_again(path: bytes) -> None:
    """Copy up without a difference."""
    mode = os.lstat(path).st_mode & 0o7777
    if not os.path.islink(path):
        os.chmod(path, mode ^ 0o1)
        os.chmod(path, mode)


def _link(path: bytes, other: bytes) -> None:
    os.link(path, os.path.join(os.path.dirname(path), other), follow_symlinks=False)


def _move(path: bytes, other: bytes) -> None:
    # Through `mv`, which copies what overlayfs will not rename.
    subprocess.run(
        [b"mv", b"-T", b"--", path, os.path.join(os.path.dirname(path), other)],
        stderr=subprocess.DEVNULL,
    )


def _listen(path: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)


EDITS = {
    "write": _write,
    "remove": _remove,
    "mkdir": lambda path: os.mkdir(path),
    "symlink": lambda path, target: os.symlink(target, path),
    "chmod": lambda path, mode: os.chmod(path, int(mode, 8)),
    "touch": _touch_again,
    "link": _link,
    "move": _move,
    "fifo": lambda path: os.mkfifo(path),
    "socket": _listen,
    "xattr": lambda path, value: os.setxattr(path, b"user.test", value, follow_symlinks=False),
}
ANSWERS = {"mount": mount, "unmount": unmount, "shell": shell, "edit": edit, "read": read}

if __name__ == "__main__":
    os.umask(0o022)
    main()
