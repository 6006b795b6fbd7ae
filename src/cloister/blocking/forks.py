"""Forked sandboxes as a list that ends them where a `with` block ends."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Protocol, Self, TypeVar


class Stoppable(Protocol):
    """What a list of sandboxes needs of each."""

    def stop(self) -> None: ...


S = TypeVar("S", bound=Stoppable)


class Forks(list[S]):
    """Running sandboxes; use it as a list, or as `with`, which ends them all."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # One that cannot be ended does not keep the others from it.
        with ExitStack() as stack:
            for sandbox in self:
                stack.callback(sandbox.stop)
