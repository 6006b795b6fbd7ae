"""What a user may not do to files, done by the sandbox's root for the user, as E2B's daemon does.

Whoever holds the token of a sandbox may be root in it anyway; programs inside gain nothing: root
goes no way that they could have laid.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from cloister.e2b.people import Person
from cloister.e2b.roots_way import is_roots_way
from cloister.errors import CloisterError, FileError
from cloister.model import NAMED_USERS
from cloister.sandbox import Sandbox

Answer = TypeVar("Answer")

_REFUSED = frozenset({"EACCES", "EPERM"})
# What an upload may have sent before it was refused, and can be sent once more.
_MOST_HELD_BYTES = 4 * 2**20
# Makes the directories that are missing on the way, as the user's; says whether it made any.
_MAKE = """
set -e
owner=$1 missing= place=$2
while [ ! -e "$place" ]; do missing="$place
$missing"; place=$(dirname "$place"); done
[ -n "$missing" ] || exit 3
mkdir -p "$2"
# The lowest first: above it nobody but root can exchange anything yet.
printf %s "$missing" | tac | while read -r each; do chown -h "$owner" "$each"; done
"""


async def or_as_root(
    sandbox: Sandbox,
    paths: Iterable[str],
    person: Person,
    call: Callable[[Person], Awaitable[Answer]],
) -> Answer:
    """Return what a call by a user returns, or, where the user may not, by root."""
    try:
        return await call(person)
    except FileError as error:
        if not is_refused(error, person):
            raise
        for path in paths:
            if not await is_roots_way(sandbox, path):
                raise
        try:
            return await call(replace(person, user=NAMED_USERS["root"]))
        except CloisterError:
            raise error from None


async def make_directories(sandbox: Sandbox, path: str, person: Person) -> bool:
    """Make a directory and those above it, all of them the user's; False if it was there.

    Not below a place that others than root can change.
    """
    if not await is_roots_way(sandbox, path):
        return False
    argv = ["/bin/sh", "-c", _MAKE, "sh", f"{person.user.uid}:{person.user.gid}", path]
    result = await sandbox.run(argv, cwd="/", user=NAMED_USERS["root"], timeout=30)
    return result.ok


async def give(sandbox: Sandbox, path: str, person: Person) -> None:
    """Make a user the owner of a file."""
    argv = ["chown", "-h", f"{person.user.uid}:{person.user.gid}", "--", path]
    await sandbox.run(argv, cwd="/", user=NAMED_USERS["root"], timeout=30)


def is_refused(error: FileError, person: Person) -> bool:
    """Whether root may do what this user was refused."""
    return error.errno_name in _REFUSED and person.user.uid != 0


class Held:
    """Content that can be read once more from the beginning, unless too much of it was read."""

    def __init__(self, content: AsyncIterator[bytes]) -> None:
        self._content = content
        self._held: list[bytes] = []
        self._held_bytes = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it is lost yet."""
        return self._held_bytes <= _MOST_HELD_BYTES

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield all of it."""
        for chunk in list(self._held):
            yield chunk
        async for chunk in self._content:
            self._held_bytes += len(chunk)
            if self.is_whole:
                self._held.append(chunk)
            else:
                self._held.clear()
            yield chunk
