"""What is said of an error where others than the host's owner read: not where things lie."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from cloister.errors import HostError
from cloister.runtime.namespace.instance import runtime_place
from cloister.store.place import state_directory

HIDDEN = "(a path of the host)"
# A slash that begins a word, and all that can be of a path behind it.
_ABSOLUTE = re.compile(r"(?<![\w./~-])/[^\s'\"`,;:()]+")


def told_of(error: BaseException) -> str:
    """Return an error's words for a ledger or a record, which others may be given to read."""
    return without_places(str(error), everything=isinstance(error, HostError | OSError))


def without_places(words: str, *, everything: bool = False) -> str:
    """Return words without the places of the host that are Cloister's; or without any path.

    Of what is said about a sandbox, paths are those inside, and stay: only our own places go.
    """
    for place in _places(str(state_directory()), str(runtime_place())):
        words = place.sub(HIDDEN, words)
    return _ABSOLUTE.sub(HIDDEN, words) if everything else words


@lru_cache(maxsize=8)
def _places(*directories: str) -> tuple[re.Pattern[str], ...]:
    package = str(Path(__file__).parents[1])
    found = sorted({*directories, package}, key=len, reverse=True)
    return tuple(re.compile(re.escape(each) + r"[^\s'\"`,;:()]*") for each in found)
