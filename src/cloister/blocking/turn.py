"""Turns asynchronous methods into ordinary ones with the same signature and docstring."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from cloister.blocking.loop import Loop, as_coroutine

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")


class Proxy(Protocol):
    """Stands for an asynchronous object, `_inner`, whose loop runs in another thread."""

    @property
    def _inner(self) -> Any: ...
    @property
    def _loop(self) -> Loop: ...


def _own(method: Callable[..., T], inner: object) -> Callable[..., T]:
    """Return the method as the object has it: one on a server does the same in its own way."""
    own: Callable[..., T] = getattr(inner, method.__name__)
    return own


def waits(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Proxy, P], T]:
    """Turn an asynchronous method into one that returns when it is done."""

    def call(self: Proxy, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.wait(_own(method, self._inner)(*args, **kwargs))

    functools.update_wrapper(call, method)
    return call


def calls(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Proxy, P], T]:
    """Turn a method that must run in the loop's thread into one for any thread."""

    def call(self: Proxy, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def inside() -> T:
            return _own(method, self._inner)(*args, **kwargs)

        return self._loop.wait(inside())

    functools.update_wrapper(call, method)
    return call


def iterates(
    method: Callable[Concatenate[A, P], AsyncIterator[T]],
) -> Callable[Concatenate[Proxy, P], Iterator[T]]:
    """Turn an asynchronous generator into an ordinary one."""

    def call(self: Proxy, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return iterate(self._loop, _own(method, self._inner)(*args, **kwargs))

    functools.update_wrapper(call, method)
    return call


def iterate(loop: Loop, chunks: AsyncIterator[T]) -> Iterator[T]:
    """Yield what an asynchronous iterator yields, and close it at the end."""
    try:
        while True:
            try:
                yield loop.wait(anext(chunks))
            except StopAsyncIteration:
                return
    finally:
        if isinstance(chunks, AsyncGenerator):
            # A generator dropped unfinished may be collected in any thread, the loop's included.
            if loop.is_here:
                loop.forget(as_coroutine(chunks.aclose()))
            else:
                loop.wait(chunks.aclose())
