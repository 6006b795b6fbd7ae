"""A key in this process's session keyring, planted as a canary."""

from __future__ import annotations

import ctypes
import os

_ADD_KEY, _KEYCTL = 248, 250
_JOIN_SESSION, _UNLINK = 1, 9
_SESSION_KEYRING = -3

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_joined: set[int] = set()


class SessionKey:
    """A key of type "user"; `id` is its serial number, which is no secret."""

    def __init__(self, description: str, payload: bytes) -> None:
        if os.getpid() not in _joined:
            # Without a session keyring of its own this process would share the user's, which a
            # user namespace hides anyway: the canary would prove nothing.
            _call(_KEYCTL, _JOIN_SESSION, None, 0, 0, 0)
            _joined.add(os.getpid())
        self.description = description
        self.id = _call(
            _ADD_KEY, b"user", description.encode(), payload, len(payload), _SESSION_KEYRING
        )

    def close(self) -> None:
        """Take the key out again."""
        _call(_KEYCTL, _UNLINK, self.id, _SESSION_KEYRING, 0, 0)


def _call(number: int, *arguments: bytes | int | None) -> int:
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = _libc.syscall(ctypes.c_long(number), *wide)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
