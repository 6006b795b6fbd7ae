"""Several that are started at once: all of them, or none."""

from __future__ import annotations

import asyncio

import pytest

from cloister.errors import Exhausted
from cloister.server.all_or_none import all_or_none


async def begin(count: int, room: int) -> tuple[list[int], int, list[int]]:
    """Start some where there is room for so many; return those, the tries, and what was undone."""
    tries, undone = 0, []

    async def start() -> int:
        nonlocal tries
        tries += 1
        number = tries
        if number > room:
            raise Exhausted("no room", limit="sandboxes")
        await asyncio.sleep(0)
        return number

    async def undo(number: int) -> None:
        undone.append(number)

    try:
        return await all_or_none(count, start, undo), tries, undone
    except Exhausted:
        return [], tries, undone


@pytest.mark.parametrize("room", [0, 1, 3])
async def test_of_many_more_than_there_is_room_for_one_more_is_tried_and_none_stays(
    room: int,
) -> None:
    assert await begin(1000, room) == ([], room + 1, list(range(1, room + 1)))


async def test_as_many_as_there_is_room_for_are_started() -> None:
    assert await begin(3, 3) == ([1, 2, 3], 3, [])


async def test_what_was_started_for_one_who_is_cancelled_is_undone() -> None:
    slow, first, undone = asyncio.Event(), asyncio.Event(), []
    numbers = iter(range(1, 4))

    async def start() -> int:
        number = next(numbers)
        if number > 1:
            await slow.wait()
        first.set()
        return number

    async def undo(number: int) -> None:
        undone.append(number)

    asking = asyncio.create_task(all_or_none(3, start, undo))
    await first.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert undone == [1]
