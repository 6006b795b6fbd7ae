"""Every sandbox that clients of E2B were told of, by the id they were told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import weakref
from collections.abc import Coroutine, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cloister.e2b.box import Box, Terms, public_id, variables_of
from cloister.e2b.derived import Derived
from cloister.e2b.interpreter.sessions import Sessions
from cloister.e2b.signature import Claim
from cloister.errors import CloisterError
from cloister.sandbox import Sandbox
from cloister.server.resident import Resident
from cloister.store.place import make_private

NOTE = "e2b"
_KEY_BYTES = 32
_SEARCHED = "/usr/local/bin:/usr/bin:/bin"


class Boxes:
    """The live ones. Who may do what is decided by their tokens, which are all derived."""

    def __init__(self, derived: Derived, most_upload_bytes: int) -> None:
        self.derived = derived
        self._most_upload_bytes = most_upload_bytes
        self._boxes: dict[str, Box] = {}
        self._residents: dict[str, Resident] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Kernels of sandboxes that were started ahead, and that nobody has asked for yet.
        self._ahead: weakref.WeakKeyDictionary[Sandbox, Sessions] = weakref.WeakKeyDictionary()

    def of(self, resident: Resident) -> Box:
        """Return the box of a live sandbox, made when it is first asked for."""
        id = public_id(resident.id)
        box = self._boxes.get(id)
        if box is not None and box.sandbox is resident.sandbox:
            return box
        box = Box(
            resident.sandbox,
            id=id,
            terms=terms_of(resident.notes),
            derived=self.derived,
            most_upload_bytes=self._most_upload_bytes,
            sessions=self._ahead.pop(resident.sandbox, None),
        )
        self._boxes[id] = box
        self._residents[id] = resident
        self._spawn(self._until_ended(box, resident))
        return box

    def find(self, id: str) -> tuple[Box, Resident] | None:
        """Return a live one; the caller has shown nothing yet but that they know its id."""
        box, resident = self._boxes.get(id), self._residents.get(id)
        if box is None or resident is None or resident.ended.is_set():
            return None
        return (box, resident) if box.sandbox.is_running else None

    async def signed(self, claim: Claim) -> Box | None:
        """Return the one whose token made a signature: the URL does not say which one it is."""
        for id, box in list(self._boxes.items()):
            if await box.signer_of(claim) is not None and self.find(id) is not None:
                return box
        return None

    async def close(self) -> None:
        """Let go of all of them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for box in self._boxes.values():
            await box.close()
        self._boxes.clear()

    async def warm_ahead(self, template: str, sandbox: Sandbox) -> None:
        """Have a kernel ready in a sandbox before it is anybody's."""
        variables = variables_of(sandbox, public_id(sandbox.id), template)
        sessions = Sessions(sandbox, variables)
        await sessions.warm()
        self._ahead[sandbox] = sessions

    def warm(self, box: Box) -> None:
        """Have a kernel of the box ready, in the background."""
        self._spawn(_warm(box))

    def equip(self, box: Box) -> None:
        """Give a sandbox of the host's programs a `python`, before its first program starts."""
        if shutil.which("python", path=_SEARCHED) is None and shutil.which(
            "python3", path=_SEARCHED
        ):
            task = self._spawn(_add_python(box.sandbox))
            box.processes.first(task)

    async def _until_ended(self, box: Box, resident: Resident) -> None:
        await resident.ended.wait()
        if self._boxes.get(box.id) is box:
            del self._boxes[box.id]
            del self._residents[box.id]
        await box.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _add_python(sandbox: Sandbox) -> None:
    # Where /usr cannot be changed inside there is none: `python3` is.
    with contextlib.suppress(CloisterError):
        await sandbox.run(["ln", "-s", "python3", "/usr/bin/python"], user="root", timeout=30)


async def _warm(box: Box) -> None:
    # Whoever runs code is told what is missing; whoever only might need not be.
    with contextlib.suppress(CloisterError):
        await box.sessions.warm()


def terms_of(notes: Mapping[str, str]) -> Terms:
    """Return what is remembered of how a sandbox was asked for."""
    if NOTE not in notes:
        # Not asked for by this protocol: nobody said that its ports are for everybody.
        return Terms("base", is_open_to_traffic=False)
    return Terms(**{"template": "base", **json.loads(notes[NOTE])})


def notes_of(terms: Terms) -> tuple[tuple[str, str], ...]:
    """Return what is to be remembered."""
    return ((NOTE, json.dumps(asdict(terms))),)


def read_key(directory: Path) -> bytes:
    """Return the key that all tokens come from, made at the first start."""
    path = directory / "e2b.key"
    with contextlib.suppress(FileExistsError):
        make_private(directory)
        draft = directory / f".e2b.key-{secrets.token_hex(8)}"
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            # Two servers at their first start agree on one of the two.
            os.link(draft, path)
        finally:
            os.unlink(draft)
    return path.read_bytes()
