"""The store of this process, opened when the first sandbox needs it."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloister.store import Store

_lock = threading.Lock()
_opened: dict[str, Store] = {}


async def open_store() -> Store:
    """Return the store of the state directory, which CLOISTER_STATE may name."""
    if _opened:
        from cloister.store import state_directory

        store = _opened.get(str(state_directory()))
        if store is not None:
            return store
    return await asyncio.to_thread(_open)


def _open() -> Store:
    # Imported when needed: a sandbox whose files are in memory starts without any of it.
    from cloister.store import Store, state_directory

    directory = state_directory()
    with _lock:
        store = _opened.get(str(directory))
        if store is None:
            store = _opened[str(directory)] = Store.open(directory)
        return store


def close_store() -> None:
    """Let go of the store of the state directory; the next who needs it opens it again."""
    from cloister.store import state_directory

    with _lock:
        store = _opened.pop(str(state_directory()), None)
    if store is not None:
        store.close()


def _forget() -> None:
    """In a forked child: a connection to the records is not for two processes."""
    _opened.clear()


os.register_at_fork(after_in_child=_forget)
