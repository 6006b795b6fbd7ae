"""Finds the ledger that a person means: by its name, the beginning of it, or the label."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from cloister.errors import CloisterError, NotFound, RequestError
from cloister.ledger.lifecycle import Planned
from cloister.ledger.place import list_ledgers
from cloister.ledger.reader import read_entries
from cloister.ledger.text import readable
from cloister.model import quote

# The plan is the first thing written after the opening.
_FIRST = 4
_MOST_NAMED = 5


def find_ledger(state: Path, text: str) -> str:
    """Return the name of the one ledger that is meant; of several with a label, the newest."""
    names = list_ledgers(state)
    if text in names:
        return text
    found = [name for name in names if text and name.startswith(text)]
    if len(found) > 1:
        some = ", ".join(found[:_MOST_NAMED])
        raise RequestError(
            f"{quote(text)} begins {len(found)} names: {some}; write more of the one you mean"
        )
    if found:
        return found[0]
    for name in reversed(names):
        if _label(state, name) == text:
            return name
    raise NotFound(
        f"no ledger of {quote(text)}; there are {len(names)} in {state / 'ledger'}", what=text
    )


def _label(state: Path, name: str) -> str | None:
    try:
        for entry in islice(read_entries(state, name), _FIRST):
            if isinstance(entry.payload, Planned) and entry.payload.label is not None:
                return readable(entry.payload.label)
    except CloisterError:
        # Damaged, or not a ledger at all: it can still be named in full.
        return None
    return None
