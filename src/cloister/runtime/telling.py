"""Says what is being made that is made once, to whoever shows it to a person who waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_listeners: list[Callable[[str], None]] = []


def tell(words: str) -> None:
    """Say what is being done from now on; nobody may be listening."""
    for listener in tuple(_listeners):
        listener(words)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Have a function called with what is told, from any thread, for as long as this lasts."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
