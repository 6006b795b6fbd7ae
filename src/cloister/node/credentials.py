"""Credentials made for one sandbox and unmade with it, also by whoever comes after a crash."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import weakref
from pathlib import Path

from cloister.errors import CloisterError, HostError, RequestError
from cloister.node.revoker import REVOKER
from cloister.node.secret_sources import command_output
from cloister.node.secret_value import SecretValue
from cloister.policy.secrets import SecretBinding

_MOST_HANDLE = 4096


class Credential:
    """What a command has minted: its value, and the handle by which it can be revoked.

    `mint` prints the value, and on a second line, if it likes, a handle that is no secret.
    `revoke` is told the handle, or without one the value, on its standard input.
    """

    def __init__(self, binding: SecretBinding, value: SecretValue, handle: str | None) -> None:
        self.value = value
        self._binding = binding
        self._handle = handle
        self._record: tuple[Path, int] | None = None

    async def revoke(self) -> None:
        """Have it revoked. What fails is tried again by the next sandbox that mints anything."""
        if self._binding.revoke:
            told = self._handle if self._handle is not None else self.value.reveal()
            try:
                await command_output(self._binding.name, self._binding.revoke, f"{told}\n")
            except CloisterError as error:
                self._let_go(remove=False)
                raise HostError(
                    f"the credential {self._binding.name} was not revoked: {error}"
                ) from None
        self._let_go(remove=True)

    def note(self, place: Path, sandbox: str) -> None:
        """Write down what to revoke, for whoever comes after us; never the value."""
        if self._handle is None or not self._binding.revoke:
            return
        path = place / f"{sandbox}.{self._binding.name}.json"
        fd = _made(path)
        record = {
            "name": self._binding.name,
            "revoke": list(self._binding.revoke),
            "handle": self._handle,
        }
        os.write(fd, json.dumps(record).encode())
        os.fsync(fd)
        self._record = path, fd
        _noted.add(self)
        REVOKER.begin(place)

    def _let_go(self, *, remove: bool) -> None:
        if self._record is not None:
            (path, fd), self._record = self._record, None
            if remove:
                path.unlink(missing_ok=True)
            os.close(fd)
            REVOKER.end()

    def forget_in_child(self) -> None:
        """After a fork: it is the parent's, and its lock lasts no longer than the parent."""
        if self._record is not None:
            (_, fd), self._record = self._record, None
            os.close(fd)


def _made(path: Path) -> int:
    """Make a record that nobody else holds, and return it, locked."""
    while True:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return fd
        # Before it was locked somebody took it, empty, for what a killed owner had left.
        os.close(fd)


_noted: weakref.WeakSet[Credential] = weakref.WeakSet()


def _after_fork() -> None:
    for each in tuple(_noted):
        each.forget_in_child()
    REVOKER.forget_in_child()


# A child that outlives a killed parent would hold the lock that says that its owner lives.
os.register_at_fork(after_in_child=_after_fork)


async def mint(binding: SecretBinding, sandbox: str) -> Credential:
    """Have a credential made for one sandbox."""
    from cloister.store.place import make_private, state_directory

    place = state_directory() / "credentials"
    await asyncio.to_thread(make_private, place)
    await revoke_abandoned(place)
    text = await command_output(binding.name, binding.argv)
    value, _, rest = text.partition("\n")
    handle = rest.strip() or None
    if handle is not None and (len(handle) > _MOST_HANDLE or "\n" in handle):
        raise RequestError(
            f"the command that mints {binding.name} printed more than a value and a handle"
        )
    credential = Credential(binding, SecretValue(binding.name, value), handle)
    await asyncio.to_thread(credential.note, place, sandbox)
    return credential


async def revoke_abandoned(place: Path) -> None:
    """Revoke what owners that are no more have left."""
    for path in sorted(place.glob("*.json")):
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                record = json.loads(os.pread(fd, 65_536, 0) or b"null")
                if record is not None:
                    name, argv, handle = record["name"], record["revoke"], record["handle"]
                    await command_output(name, tuple(argv), f"{handle}\n")
                path.unlink(missing_ok=True)
            except (BlockingIOError, CloisterError, ValueError):
                # Its owner lives, or it cannot be revoked now: it stays for the next.
                continue
            finally:
                os.close(fd)
