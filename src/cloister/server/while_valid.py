"""Lets a request go on for as long as the token that let it in is valid, and no longer."""

from __future__ import annotations

import asyncio
from types import TracebackType

from starlette.types import Message, Scope, Send

from cloister.errors import TokenRefused
from cloister.server.cut_off import close_connection
from cloister.server.tokens import OWNER_CALLER, Caller, Tokens

# Where the connection has the token that let a request in, or that what let it in was made from.
LET_IN_BY = "cloister.let_in_by"
# How often one that takes longer is looked at; most are over before.
_EVERY_S = 2.0


class WhileValid:
    """A block that is cancelled, and raises TokenRefused, when the caller's token has ended."""

    def __init__(self, tokens: Tokens, caller: Caller) -> None:
        self._tokens = tokens
        self._caller = caller
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._is_refused = False

    def __enter__(self) -> None:
        """Begin to look, unless whoever asks has no token: by the unix socket."""
        if self._caller.token != OWNER_CALLER.token:
            self._task = asyncio.current_task()
            self._wait()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Look no more."""
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
        if self._is_refused and task is not None:
            task.uncancel()
            if kind is asyncio.CancelledError:
                raise TokenRefused("the token has expired or was revoked; ask for another")

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_EVERY_S, self._begin)

    def _begin(self) -> None:
        self._looking = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        is_valid = await self._tokens.is_valid(self._caller.token)
        if self._task is None:
            return
        if is_valid:
            self._wait()
        else:
            self._is_refused = True
            self._task.cancel()


class AnswerWhileValid:
    """The sending of an answer: one that is not over when the token has ended is broken off."""

    def __init__(self, tokens: Tokens, scope: Scope, send: Send) -> None:
        self._tokens = tokens
        self._scope = scope
        self._send = send
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._is_over = False

    async def send(self, message: Message) -> None:
        """Send a part of it, and begin to look once there is one that is not the last."""
        if self._timer is None and message.get("more_body") and LET_IN_BY in self._scope:
            self._wait()
        await self._send(message)

    def close(self) -> None:
        """Look no more."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_EVERY_S, self._begin)

    def _begin(self) -> None:
        self._looking = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        is_valid = await self._tokens.is_valid(self._scope[LET_IN_BY])
        if self._is_over:
            return
        if is_valid:
            self._wait()
        else:
            # Whoever answers hears that the client has gone, which it knows how to end at.
            close_connection(self._scope)
