"""Whose sandbox is whose, and when it ends although nobody said so."""

from __future__ import annotations

import asyncio

import pytest

from cloister.mcp import desks as desks_room
from cloister.mcp.desk import Desk
from cloister.mcp.desks import Desks
from cloister.policy import Policy


class Told(Desk):
    """A desk that tells when it is closed."""

    def __init__(self) -> None:
        super().__init__(Policy(), self._never, kept=False)
        self.over = asyncio.Event()

    async def _never(self, approve: object) -> None:  # type: ignore[override]
        raise AssertionError("nothing is opened here")

    async def close(self) -> None:
        await super().close()
        self.over.set()


async def test_sessions_have_desks_of_their_own_unless_all_share_one() -> None:
    own = Desks(Told, shared=False)
    assert own.of("a") is own.of("a")
    assert own.of("a") is not own.of("b")
    assert own.of(None) is not own.of("a")
    one = Desks(Told, shared=True)
    assert one.of("a") is one.of("b") is one.of(None)


async def test_a_guessed_session_makes_no_desk() -> None:
    desks = Desks(Told, shared=False)
    assert desks.enter("guess", stream=False, is_new=False) is False
    assert desks.enter("known", stream=False, is_new=True) is True
    assert desks.enter("known", stream=False, is_new=False) is True


async def test_a_client_that_lost_its_stream_is_waited_for_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(desks_room, "LINGER_S", 0.05)
    desks = Desks(Told, shared=False)
    desk = desks.of("a")
    assert isinstance(desk, Told)
    desks.enter("a", stream=True, is_new=False)
    desks.leave("a")
    # It comes back in time, and stays.
    desks.enter("a", stream=True, is_new=False)
    await asyncio.sleep(0.1)
    assert desks.of("a") is desk and not desk.over.is_set()
    desks.leave("a")
    await asyncio.wait_for(desk.over.wait(), 10)
    assert desks.of("a") is not desk


async def test_a_client_without_a_stream_may_think_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(desks_room, "LINGER_S", 0.0)
    desks = Desks(Told, shared=False)
    desk = desks.of("a")
    desks.enter("a", stream=False, is_new=False)
    desks.leave("a")
    await asyncio.sleep(0.05)
    assert desks.of("a") is desk
    await desks.close()


async def test_closing_closes_all_of_them() -> None:
    desks = Desks(Told, shared=False)
    found = [desks.of(name) for name in ("a", "b", None)]
    await desks.close()
    assert all(isinstance(each, Told) and each.over.is_set() for each in found)
