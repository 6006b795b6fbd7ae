"""One file operation under way: the guest's clerk works, its streams are ours to feed and read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from cloister.errors import CloisterError, Exhausted, GuestError, GuestGone
from cloister.model import User
from cloister.wire import (
    Close,
    Credit,
    Data,
    Exited,
    Failed,
    Message,
    Outgoing,
    PipeIncoming,
    PipeOutgoing,
    WireIncoming,
    WireOutgoing,
)
from cloister.wire.messages import Operation, Reach, encode_file, encode_signal
from cloister.wire.streams import open_pipe

if TYPE_CHECKING:
    from cloister.sandbox.sandbox import Sandbox

_INPUT, _OUTPUT = 0, 1
# A file operation that neither takes nor gives a byte for this long is given up.
_STALL_S = 60.0
# How long a clerk that was given up may take to clean up after itself.
_TIDY_S = 1.0


class Errand:
    """Use as `async with`: leaving early ends the clerk."""

    input: Outgoing
    output: PipeIncoming | WireIncoming

    def __init__(
        self, sandbox: Sandbox, operation: Operation, user: User, path: bytes, **details: Any
    ) -> None:
        self._sandbox = sandbox
        self._request = (operation, user, path, details)
        self._takes_input = operation in (Operation.WRITE, Operation.PUT)
        # A watch waits for as long as nothing changes.
        self._patience_s = None if operation is Operation.WATCH else _STALL_S
        self._ended: asyncio.Future[Failed | None] = asyncio.get_running_loop().create_future()
        # For the ledger: how much of the content went through, and where to or from.
        self.content_bytes: int | None = None
        self.elsewhere: str | bytes | os.PathLike[str] = details.get("other", b"")

    async def __aenter__(self) -> Self:
        await self._sandbox.wait_until_moving()
        self._sandbox.enter()
        try:
            self._begin()
        except BaseException:
            self._sandbox.leave()
            raise
        return self

    def _begin(self) -> None:
        operation, user, path, details = self._request
        link = self._link = self._sandbox.link
        self._id = link.new_id()
        frame = encode_file(self._id, operation, uid=user.uid, gid=user.gid, path=path, **details)
        link.listen(self._id, self)
        if not link.carries_descriptors:
            self.input = WireOutgoing(link, self._id, _INPUT)
            self.output = WireIncoming(link, self._id, _OUTPUT)
            link.send(frame)
            return
        in_read, in_write = open_pipe()
        out_read, out_write = open_pipe()
        self.input, self.output = PipeOutgoing(in_write), PipeIncoming(out_read)
        try:
            link.send(frame, (in_read, out_write))
        finally:
            os.close(in_read)
            os.close(out_write)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.input.close()
        self.output.close()
        try:
            if self._takes_input:
                await self._wait_tidied()
        finally:
            if not self._ended.done() and not self._link.closed:
                # Given up half-way: the clerk may be waiting for something that never comes.
                self._link.send(encode_signal(self._id, signal.SIGKILL, Reach.PROCESS))
            self._link.forget(self._id)
            self._sandbox.leave()
            self._record()

    def _record(self) -> None:
        recording, ended = self._sandbox.recording, self._ended
        if recording is not None:
            operation, _, path, _ = self._request
            recording.file(
                operation,
                path,
                done=ended.done() and ended.exception() is None and ended.result() is None,
                content_bytes=self.content_bytes,
                other=self.elsewhere,
            )

    async def _wait_tidied(self) -> None:
        """A clerk whose input was cut takes its draft away; killed at once it would leave it."""
        with contextlib.suppress(TimeoutError, CloisterError):
            async with asyncio.timeout(_TIDY_S):
                await asyncio.shield(self._ended)

    async def give(self, data: bytes) -> bool:
        """Feed the clerk; False when it has stopped listening, and says why at the end."""
        try:
            async with self._patience():
                await self.input.write(data)
        except GuestGone:
            if self._link.closed:
                raise
            return False
        return not self._ended.done()

    async def wait(self) -> Failed | None:
        """Wait for the clerk to finish; return what went wrong, if anything did."""
        async with self._patience():
            return await asyncio.shield(self._ended)

    async def read(self) -> bytes:
        """Return the next chunk of what the clerk says, or b"" at the end."""
        async with self._patience():
            return await self.output.read()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield what the clerk says until it has said all."""
        while chunk := await self.read():
            yield chunk

    @contextlib.asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        """Bound one wait for the clerk: a program of its own user can stop it at any point."""
        try:
            async with asyncio.timeout(self._patience_s):
                yield
        except TimeoutError:
            raise GuestError(
                f"a file operation has made no progress for {self._patience_s:g} s; "
                "something inside holds it up: end the programs there, or stop the sandbox"
            ) from None

    def hear(self, message: Message) -> None:
        """Take what the guest says about this operation."""
        match message:
            case Failed(step="fork"):
                self._refuse(message)
            case Failed():
                self._settle(message)
            case Exited(signal=0):
                self._settle(None)
            case Exited():
                self._fail(
                    GuestError(f"the file operation was ended inside by signal {message.signal}")
                )
            case Data() if isinstance(self.output, WireIncoming):
                self.output.feed(message.data)
            case Close(stream=1) if isinstance(self.output, WireIncoming):
                self.output.feed_end()
            case Credit() if isinstance(self.input, WireOutgoing):
                self.input.credited(message.allowed)
            case _:
                return

    def lost(self, error: CloisterError) -> None:
        """The guest is gone."""
        self._fail(error)
        self.output.close()
        if isinstance(self.input, WireOutgoing):
            self.input.lost(error)

    def _refuse(self, failed: Failed) -> None:
        self._fail(
            Exhausted(
                "the sandbox has as many processes as it may have, or no memory for one more; "
                "end some, or raise Limits(pids=) or Limits(memory=)",
                limit="pids",
            )
        )
        if isinstance(self.output, WireIncoming):
            self.output.feed_end()

    def _settle(self, failed: Failed | None) -> None:
        if not self._ended.done():
            self._ended.set_result(failed)
            self._stop_feeding()

    def _fail(self, error: CloisterError) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)
            self._ended.exception()
            self._stop_feeding()

    def _stop_feeding(self) -> None:
        # A feeder that waits for room waits for a clerk that is no more.
        if isinstance(self.input, WireOutgoing):
            self.input.lost(GuestGone("the file operation has ended", reason="closed"))
