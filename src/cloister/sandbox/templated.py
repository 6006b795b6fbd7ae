"""Sandboxes of a template: its policy and image, its program started, and the wait until ready."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from cloister.errors import CloisterError, GuestError, NotFound, ProcessFailed, RequestError
from cloister.model import quote
from cloister.node import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloister.node.templates import Ready, TemplateRecord
    from cloister.policy import Policy
    from cloister.sandbox.process import Process
    from cloister.sandbox.sandbox import Sandbox
    from cloister.wire.streams import Incoming

_TAIL_BYTES = 2048
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.25


async def find_template(reference: str) -> TemplateRecord:
    """Return a template of this store, whose image is here."""
    # Imported when needed, like all that only some sandboxes do.
    from cloister.node.templates import Templates

    store = await open_store()

    def find() -> TemplateRecord:
        record = Templates(store).find(reference)
        try:
            store.images.find(record.image)
        except NotFound:
            raise NotFound(
                f"the image of template {quote(record.reference)} is gone; build it again, "
                "or name another version",
                what=reference,
            ) from None
        return record

    return await asyncio.to_thread(find)


def template_policy(
    record: TemplateRecord, policy: Policy | None, changes: Mapping[str, Any]
) -> Policy:
    """Return what the template says, with what the caller changes of it."""
    # One that stands on the template's own image was made from the template's.
    if policy is not None and policy.root == record.policy.root and "root" not in changes:
        return policy.replace(**changes)
    if policy is not None or "root" in changes:
        raise RequestError(
            f"template {quote(record.reference)} brings its policy and its image; "
            "change single fields instead, such as limits="
        )
    return record.policy.replace(**changes)


async def launch(sandbox: Sandbox, record: TemplateRecord) -> None:
    """Start the template's program, if it has one, and wait until the sandbox is ready."""
    program = None
    if record.start:
        program = _Program(await sandbox.start(list(record.start)))
    if record.ready is None:
        return
    try:
        async with asyncio.timeout(record.ready.timeout_s):
            await _wait_ready(sandbox, record.ready, program)
    except TimeoutError:
        raise GuestError(
            f"template {quote(record.reference)} was not ready within "
            f"{record.ready.timeout_s:g} s{'' if program is None else program.words()}"
        ) from None


class _Program:
    """The program of a template. What it says is read for as long as it runs, or it would wait."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._tail = bytearray()
        streams = [each for each in (process.stdout, process.stderr) if each is not None]
        self._reading = [asyncio.create_task(self._read(each)) for each in streams]

    async def _read(self, stream: Incoming) -> None:
        # The sandbox ends, and with it the stream.
        with contextlib.suppress(CloisterError):
            async for chunk in stream:
                self._tail += chunk
                del self._tail[:-_TAIL_BYTES]

    def words(self) -> str:
        """Return the last it said, as part of an error."""
        said = self._tail.decode("utf-8", "replace").strip().rpartition("\n")[2]
        shown = "".join(c if c.isprintable() else "?" for c in said)
        return f"; its program said last: {shown}" if shown else "; its program said nothing"


async def _wait_ready(sandbox: Sandbox, ready: Ready, program: _Program | None) -> None:
    pause_s = _FIRST_PAUSE_S
    while not await _is_ready(sandbox, ready):
        if program is not None and program.process.returncode is not None:
            result = await program.process.wait()
            raise ProcessFailed(
                f"the template's program ended before it was ready, {result.describe()}"
                f"{program.words()}",
                result=result,
            )
        # Nothing inside tells when a port is opened or a command would succeed.
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


async def _is_ready(sandbox: Sandbox, ready: Ready) -> bool:
    if ready.port is not None:
        try:
            _, writer = await sandbox.dial(ready.port)
        except NotFound:
            return False
        writer.close()
        return True
    # Not `run`: a look is no step of a history.
    process = await sandbox.start(list(ready.command), timeout=ready.timeout_s)
    return (await process.capture(_TAIL_BYTES)).ok
