"""The canary oracle: things on the host nobody inside may reach, and what tells if one was."""

from __future__ import annotations

import ctypes
import os
import secrets
import select
import shutil
import subprocess
import tempfile
from pathlib import Path

from cloister.errors import CloisterError, HostError
from cloister.sandbox import Process, Sandbox
from cloister.verify.far_end import FarEnd
from cloister.verify.keyring import SessionKey

ENVIRONMENT_NAME = "CANARY"
_NEIGHBOUR_FILE = "/workspace/mine"
# Opened, read, changed, given another mode or owner, deleted, moved.
_EVENTS = 0x20 | 0x01 | 0x02 | 0x04 | 0x400 | 0x800

_libc = ctypes.CDLL(None, use_errno=True)


class Canary:
    """What is planted for one case. `plant()` it, and ask `fired()` when the case is over."""

    def __init__(self) -> None:
        self.far_end = FarEnd()
        self.path_token = secrets.token_hex(16)
        self.tokens = {
            name: secrets.token_hex(16) for name in ("flag file", "environment", "key", "neighbour")
        }
        self.directory = Path(tempfile.gettempdir()) / f"cloister-canary-{self.path_token}"
        self.flag = self.directory / "flag"
        self.key: SessionKey | None = None
        self.neighbour = Sandbox()
        self._neighbour_process: Process | None = None
        self._watch = -1
        self._victim: subprocess.Popen[bytes] | None = None

    @property
    def victim_pid(self) -> int:
        """The process number of the innocent process."""
        if self._victim is None:
            raise HostError("the canary is not planted; await plant() first")
        return self._victim.pid

    async def plant(self) -> None:
        """Put everything in place, and try that the oracle itself works."""
        self.directory.mkdir(mode=0o700)
        self.flag.touch(mode=0o600)
        self.flag.write_text(self.tokens["flag file"])
        os.environ[ENVIRONMENT_NAME] = self.tokens["environment"]
        try:
            self.key = SessionKey(f"canary-{self.path_token}", self.tokens["key"].encode())
        except OSError:
            # A kernel without keyrings, or a container that denies them: nothing to leak.
            self.key = None
        await self.far_end.open()
        # It reads a pipe of ours and so ends with us, however we end.
        self._victim = subprocess.Popen(
            ["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        await self.plant_neighbour()
        self._watch_flag()

    async def plant_neighbour(self) -> None:
        """Start the second sandbox, with a file and a process of its own."""
        self.neighbour = Sandbox()
        await self.neighbour.open()
        await self.neighbour.files.write(_NEIGHBOUR_FILE, self.tokens["neighbour"])
        self._neighbour_process = await self.neighbour.start(["/bin/sleep", "infinity"])

    async def remove_neighbour(self) -> None:
        """End the second sandbox."""
        await self.neighbour.stop()

    async def remove(self) -> None:
        """Take everything away."""
        await self.remove_neighbour()
        await self.far_end.close()
        if self._victim is not None:
            self._victim.kill()
            self._victim.communicate()
        if self.key is not None:
            self.key.close()
        os.environ.pop(ENVIRONMENT_NAME, None)
        if self._watch >= 0:
            os.close(self._watch)
        shutil.rmtree(self.directory, ignore_errors=True)

    async def fired(self) -> list[str]:
        """Return what was reached, in words; nothing when everything is untouched."""
        found = [f"the host's {kind} listener was reached" for kind in self.far_end.contacts]
        if self._touched():
            found.append("the flag file was touched")
        if not self.flag.exists() or self.flag.read_text() != self.tokens["flag file"]:
            found.append("the flag file was changed")
        self._touched()
        if self._victim is None or self._victim.poll() is not None:
            found.append("the innocent process on the host is dead")
        return found + await self._neighbour_harm()

    def leaks(self, data: bytes) -> list[str]:
        """Return the names of the secrets that are in `data`."""
        return [name for name, token in self.tokens.items() if token.encode() in data]

    def leaked(self, data: bytes) -> bool:
        """Whether any secret is in `data`."""
        return bool(self.leaks(data))

    async def _neighbour_harm(self) -> list[str]:
        if self._neighbour_process is None or self._neighbour_process.returncode is not None:
            return ["the neighbour's process was ended"]
        try:
            kept = await self.neighbour.files.read(_NEIGHBOUR_FILE)
        except CloisterError as error:
            return [f"the neighbour is gone: {error}"]
        if kept != self.tokens["neighbour"].encode():
            return ["the neighbour's file was changed"]
        return []

    def _watch_flag(self) -> None:
        self._watch = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if (
            self._watch < 0
            or _libc.inotify_add_watch(self._watch, os.fsencode(self.flag), _EVENTS) < 0
        ):
            raise HostError(
                "the flag file cannot be watched: "
                f"{os.strerror(ctypes.get_errno())}; raise fs.inotify.max_user_instances"
            )
        self.flag.read_bytes()
        if not self._touched():
            raise HostError("the watch on the flag file does not report an open; use a local disk")

    def _touched(self) -> bool:
        touched = False
        while select.select([self._watch], [], [], 0)[0]:
            os.read(self._watch, 65_536)
            touched = True
        return touched
