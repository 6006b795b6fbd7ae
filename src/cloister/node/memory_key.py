"""The owner's key under which saved memory is sealed: a file, made on first use."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from cloister.errors import HostError, RequestError
from cloister.store.sealing import KEY_BYTES

SETTING = "CLOISTER_MEMORY_KEY"


def memory_key() -> bytes:
    """Return the key: of the file that is named, or of the one in the owner's settings."""
    if named := os.environ.get(SETTING):
        return _read(Path(named))
    path = _usual_path()
    try:
        return _read(path)
    except FileNotFoundError:
        return _make(path)


def _usual_path() -> Path:
    """Return where it is, which is not where the state is: a copy of that alone tells nothing."""
    if os.geteuid() == 0:
        return Path("/etc/cloister/memory.key")
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "cloister" / "memory.key"


def _read(path: Path) -> bytes:
    try:
        text = path.read_text().strip()
        if path.stat().st_mode & 0o077:
            raise HostError(f"{path} can be read by others; `chmod 600 {path}`")
    except FileNotFoundError:
        if os.environ.get(SETTING):
            raise RequestError(f"{SETTING} names {path}, which is not there") from None
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise HostError(f"{path} cannot be read: {error}") from error
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise HostError(
            f"{path} holds no key for memory; write {2 * KEY_BYTES} hexadecimal digits, as "
            f"`openssl rand -hex {KEY_BYTES}` prints them"
        )
    return key


def _make(path: Path) -> bytes:
    key = secrets.token_bytes(KEY_BYTES)
    written = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(written, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(key.hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            # Whoever was first has made it; theirs it is.
            os.link(written, path)
        except FileExistsError:
            return _read(path)
        finally:
            written.unlink()
    except OSError as error:
        raise HostError(
            f"{path} cannot be made: {error.strerror}; name a file with a key by {SETTING}"
        ) from error
    return key
