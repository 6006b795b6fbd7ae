"""Lets a request go on for as long as the token it came with is valid, and no longer."""

from __future__ import annotations

import asyncio
from types import TracebackType

from cloister.errors import TokenRefused
from cloister.server.tokens import OWNER_CALLER, Caller, Tokens

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
