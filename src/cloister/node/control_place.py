"""Where the process that runs a kept sandbox listens, and how the others find it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloister.errors import HostError
from cloister.runtime.namespace.instance import runtime_directory

_SOCKET = ".sock"
_BACKLOG = 64


def place_of(state: Path, name: str) -> Path:
    """Return where the socket of a kept sandbox is, or would be."""
    # One person may have several state directories, and the same name in each.
    store = hashlib.sha256(os.fsencode(state.absolute())).hexdigest()[:12]
    directory = runtime_directory() / "control"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory / f"{store}-{name}{_SOCKET}"


def log_of(state: Path, name: str) -> Path:
    """Return where a background process that runs a kept sandbox writes what it has to say."""
    return place_of(state, name).with_suffix(".log")


def listen_at(place: Path) -> socket.socket:
    """Return a socket that listens there. The caller holds the lock of that kept sandbox."""
    sweep(place.parent)
    fresh = place.with_name(f"{secrets.token_hex(8)}.new")
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with _short(fresh) as address:
            end.bind(address)
        os.chmod(fresh, 0o600)
        end.listen(_BACKLOG)
        # Under its name only once it listens: what refuses a connection there is a dead one's.
        os.rename(fresh, place)
    except OSError as error:
        end.close()
        fresh.unlink(missing_ok=True)
        raise HostError(f"{place} cannot be listened at: {error.strerror}") from error
    return end


def connect_to(place: Path) -> socket.socket | None:
    """Return a connection to whoever listens there, or None if nobody does."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # A process that is too busy to take connections must not hold us up for ever.
    end.settimeout(5.0)
    try:
        with _short(place) as address:
            end.connect(address)
    except (FileNotFoundError, ConnectionRefusedError):
        end.close()
        return None
    except OSError as error:
        end.close()
        raise HostError(f"{place} cannot be connected to: {error}") from error
    return end


def sweep(directory: Path) -> None:
    """Remove the sockets of processes that are no more."""
    for place in directory.glob(f"*{_SOCKET}"):
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with end, _short(place) as address:
            # Anything but a refusal, even a full queue, is a sign of life.
            if end.connect_ex(address) == errno.ECONNREFUSED:
                with contextlib.suppress(FileNotFoundError):
                    place.unlink()


@contextmanager
def _short(place: Path) -> Iterator[str]:
    """Yield an address for a path of any length: the kernel takes 107 bytes of one."""
    directory = os.open(place.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{place.name}"
    finally:
        os.close(directory)
