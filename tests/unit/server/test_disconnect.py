"""Work for a client ends when the client goes away, and nothing else ends with it."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request
from starlette.types import Message

from cloister.errors import NotFound, RequestError
from cloister.server.disconnect import unless_gone


def request_of(gone: asyncio.Event) -> Request:
    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


async def test_work_for_a_client_that_stays_is_done() -> None:
    async def work() -> int:
        await asyncio.sleep(0.1)
        return 7

    assert await unless_gone(request_of(asyncio.Event()), work()) == 7


async def test_a_client_that_goes_away_ends_the_work_and_nothing_else() -> None:
    gone, cleaned = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        gone.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    with pytest.raises(RequestError, match="the client went away"):
        await unless_gone(request_of(gone), work())
    assert cleaned.is_set()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_work_that_is_done_although_the_client_went_is_done() -> None:
    gone = asyncio.Event()

    async def work() -> int:
        gone.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return 7
        return 0

    assert await unless_gone(request_of(gone), work()) == 7
    await asyncio.sleep(0)


async def test_an_error_of_the_work_is_its_own() -> None:
    async def work() -> None:
        raise NotFound("nothing is there", what="it")

    with pytest.raises(NotFound):
        await unless_gone(request_of(asyncio.Event()), work())


async def test_whoever_is_cancelled_from_outside_stays_cancelled() -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(unless_gone(request_of(asyncio.Event()), work()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
