"""Output of sessions that write a line piece by piece."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from cloister.e2b.interpreter.marked_streams import MarkedStreams
from cloister.sandbox import Process


async def heard(*frames: dict[str, Any]) -> list[dict[str, Any]]:
    async def hand_over(line: bytes) -> None:
        assert line == b"cell"

    process = cast(Process, SimpleNamespace(stdout=None, stderr=None, returncode=None))
    streams = MarkedStreams(process, hand_over)
    await streams.begin(lambda mark: b"cell")
    streams._left = 1
    for frame in (*frames, {"type": "status", "status": "0"}):
        streams._frames.put_nowait(frame)
    return [frame async for frame in streams.until_end()]


def said(text: str, kind: str = "stdout") -> dict[str, Any]:
    return {"type": kind, "text": text, "at": 0.0}


async def test_the_pieces_of_a_line_are_told_as_one() -> None:
    frames = await heard(said("[1]"), said(' "x"\n'), said("next\n"), said("open"))
    assert [frame.get("text") for frame in frames] == ['[1] "x"\n', "next\n", "open", None]


async def test_nothing_of_another_kind_is_put_into_a_line_or_lost() -> None:
    frames = await heard(said("a"), said("b", "stderr"), said("c"), {"type": "result", "data": {}})
    kinds = [(frame["type"], frame.get("text")) for frame in frames]
    wanted = [("stdout", "a"), ("stderr", "b"), ("stdout", "c"), ("result", None), ("status", None)]
    assert kinds == wanted


async def test_a_line_without_an_end_is_told_in_parts() -> None:
    frames = await heard(*(said("x" * 30_000) for _ in range(4)))
    assert [len(frame.get("text", "")) for frame in frames] == [90_000, 30_000, 0]
