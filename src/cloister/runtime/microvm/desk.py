"""Speaks with the first process of a machine, which stays when there is a guest."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence

from cloister.errors import GuestError, GuestGone, ProtocolViolation
from cloister.runtime.memory import Renewal
from cloister.runtime.microvm.template import renewal_letter, sealed_letter
from cloister.wire.codec import Writer

_FREEZE, _TELL, _ANSWER = 4, 65, 70
_SANDBOX = 1
_DONE = b"D"
_ANSWER_S = 60.0
# In what is sent of a disk: the longest piece, and the word that no more comes, and why.
_MOST_PIECE, _FAILED, _MOST_WORDS = 256 * 1024, 0xFFFF_FFFF, 1000


class Desk:
    """One line; what is asked there is done before it is answered."""

    def __init__(self, ours: socket.socket) -> None:
        ours.setblocking(False)
        self._socket = ours
        self._turn = asyncio.Lock()
        # Whoever asked may have given up before the answer: it comes first, and is not the next's.
        self._owed = 0
        self._is_cut = False

    async def freeze(self, frozen: bool, *, within_s: float = _ANSWER_S) -> None:
        """Have everything of the sandbox stand still, its disk last of all; or move again."""
        packet = Writer().u8(_FREEZE).u64(_SANDBOX).flag(frozen).done()
        await self._ask(sealed_letter(packet), within_s)

    async def renew(self, time_ns: int, given: Sequence[bytes]) -> None:
        """Give a machine in which no program has run the time, new chance and its files."""
        answer = sealed_letter(Writer().u8(_ANSWER).done())
        await self._ask(renewal_letter(time_ns) + b"".join(given) + answer)

    async def give(self, letters: Sequence[bytes]) -> None:
        """Hand over the files that were announced."""
        await self._ask(b"".join(letters))

    async def tell(self, renewal: Renewal) -> None:
        """Say in the sandbox what it goes on as, or that it has begun."""
        answer = sealed_letter(Writer().u8(_ANSWER).done())
        await self._ask(_told(renewal) + answer)

    async def thaw_renewed(
        self, time_ns: int, renewal: Renewal | None, given: Sequence[bytes]
    ) -> None:
        """Give it the time and new chance, tell it what it goes on as, and let it move again.

        `given` are letters with its files as they are now.
        """
        letters = renewal_letter(time_ns) + b"".join(given)
        if renewal is not None:
            letters += _told(renewal)
        letters += sealed_letter(Writer().u8(_FREEZE).u64(_SANDBOX).flag(False).done())
        await self._ask(letters)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield what a machine sends of a disk, until it says that this was all."""
        async with self._turn:
            while size := await self._number():
                if size == _FAILED:
                    words = await self._exactly(min(await self._number(), _MOST_WORDS))
                    shown = "".join(
                        each if each.isprintable() else "?"
                        for each in words.decode(errors="replace")
                    )
                    raise GuestError(f"the disk of the machine cannot be read: {shown}")
                if size > _MOST_PIECE:
                    raise ProtocolViolation(f"a piece of {size} bytes; the limit is {_MOST_PIECE}")
                yield await self._exactly(size)

    async def _number(self) -> int:
        return int.from_bytes(await self._exactly(4), "little")

    async def _exactly(self, size: int) -> bytes:
        loop, parts, left = asyncio.get_running_loop(), [], size
        try:
            async with asyncio.timeout(_ANSWER_S):
                while left:
                    part = await loop.sock_recv(self._socket, left)
                    if not part:
                        raise GuestGone("the machine is gone", reason="gone")
                    parts.append(part)
                    left -= len(part)
        except TimeoutError:
            raise GuestGone("the machine does not answer", reason="hung") from None
        except OSError as error:
            raise GuestGone(f"the machine is gone: {error}", reason="gone") from error
        return b"".join(parts)

    async def _ask(self, letters: bytes, within_s: float = _ANSWER_S) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(within_s), self._turn:
                if self._is_cut:
                    raise GuestGone("the machine was told half of something", reason="hung")
                self._is_cut = True
                await loop.sock_sendall(self._socket, letters)
                self._is_cut = False
                self._owed += 1
                while self._owed:
                    answer = await loop.sock_recv(self._socket, 1)
                    if answer != _DONE:
                        break
                    self._owed -= 1
        except TimeoutError:
            raise GuestGone("the machine does not answer", reason="hung") from None
        except OSError as error:
            raise GuestGone(f"the machine is gone: {error}", reason="gone") from error
        if not answer:
            raise GuestGone("the machine is gone", reason="gone")
        if answer != _DONE:
            raise ProtocolViolation("the machine says what was not asked")

    def close(self) -> None:
        """Let go of it."""
        self._socket.close()


def _told(renewal: Renewal) -> bytes:
    return sealed_letter(Writer().u8(_TELL).done() + renewal.told)
