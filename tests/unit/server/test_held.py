"""What is held for those who listen to a program, however it prints."""

from __future__ import annotations

import asyncio

from cloister.server.held import Said, _Listener


def test_output_that_comes_byte_by_byte_is_held_in_pieces() -> None:
    async def main() -> None:
        listener = _Listener()
        for number in range(10_000):
            listener.put(Said("stdout", bytes((number % 256,))))
        listener.put(Said("stderr", b"other"))
        assert len(listener._events) < 10
        heard = [await listener.get() for _ in range(len(listener._events))]
        told = b"".join(each.data for each in heard if isinstance(each, Said))
        assert told == bytes(number % 256 for number in range(10_000)) + b"other"
        assert listener._bytes == 0

    asyncio.run(main())
