"""Sandboxes that begin again under the id they had: each once, however many ask at a time."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Container, Iterator

from cloister.errors import Busy
from cloister.model import quote
from cloister.server.remembered import Wish
from cloister.server.tenancy import TenantName

Key = tuple[TenantName, str]


class Waking:
    """Which ids are being started, and whose turn it is to start one."""

    def __init__(self) -> None:
        self._turns: weakref.WeakValueDictionary[Key, asyncio.Lock] = weakref.WeakValueDictionary()
        self._begun: set[Key] = set()

    def turn(self, tenant: TenantName, id: str) -> asyncio.Lock:
        """Return the lock under which it is looked whether a sandbox runs, and it is started."""
        return self._turns.setdefault((tenant, id), asyncio.Lock())

    @contextlib.contextmanager
    def claimed(self, wish: Wish, running: Container[Key]) -> Iterator[None]:
        """Refuse a second sandbox under an id: nobody could find, end or count the first then."""
        id = wish.origin.id
        if id is None:
            yield
            return
        key = wish.tenant, id
        if key in running or key in self._begun:
            raise Busy(f"sandbox {quote(id)} runs, or is being started", holder="unknown")
        self._begun.add(key)
        try:
            yield
        finally:
            self._begun.discard(key)
