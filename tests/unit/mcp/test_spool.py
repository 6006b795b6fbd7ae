"""Output is kept at both ends, paged without loss, and costs no more than its limit."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from cloister.mcp.spool import HEAD_BYTES, PAGE_BYTES, TAIL_BYTES, Spool


async def test_short_output_is_whole() -> None:
    spool = filled(b"one\n", b"two\n")
    assert spool.overview("p1").text == "one\ntwo\n"
    assert spool.overview("p1").next_cursor is None


async def test_what_may_still_come_has_a_cursor() -> None:
    spool = Spool()
    spool.feed(b"up\n")
    assert spool.overview("p1").next_cursor == 3
    spool.close()
    assert spool.overview("p1").next_cursor is None


async def test_long_output_shows_both_ends_and_where_to_go_on() -> None:
    text = "".join(f"{number}\n" for number in range(20_000))
    page = filled(text.encode()).overview("p7")
    assert page.text.startswith("0\n1\n") and page.text.endswith("\n19999\n")
    assert f'output(process="p7", cursor={page.next_cursor})' in page.text
    assert len(page.text) < PAGE_BYTES + 500


@given(st.lists(st.binary(min_size=1, max_size=70_000), max_size=12))
def test_pages_together_are_the_whole(chunks: list[bytes]) -> None:
    async def read() -> bytes:
        spool = filled(*chunks)
        found, cursor = b"", 0
        pieces = []
        while True:
            page = spool.page(cursor)
            pieces.append((cursor, page.next_cursor))
            if page.next_cursor is None:
                break
            assert page.next_cursor > cursor
            cursor = page.next_cursor
        whole = b"".join(chunks)
        for first, end in pieces:
            found += whole[first:end]
        return found

    assert asyncio.run(read()) == b"".join(chunks)


async def test_characters_are_not_cut_between_pages() -> None:
    text = "\u20ac" * 40_000
    spool = filled(text.encode())
    read, cursor = "", 0
    while cursor is not None:
        page = spool.page(cursor)
        read, cursor = read + page.text, page.next_cursor
    assert read == text


async def test_the_middle_of_endless_output_is_dropped_and_said() -> None:
    spool = filled(*[bytes([48 + number % 10]) * 2**20 for number in range(40)])
    assert spool.total == 40 * 2**20
    assert spool.held <= HEAD_BYTES + TAIL_BYTES + 2**20
    page = spool.page(HEAD_BYTES + 5)
    assert "not kept" in page.text
    assert page.next_cursor is not None and page.next_cursor > 36 * 2**20


async def test_a_reader_is_woken_by_news_and_by_the_end() -> None:
    spool = Spool()
    waiting = asyncio.create_task(spool.wait_past(0))
    await asyncio.sleep(0)
    spool.feed(b"x")
    await asyncio.wait_for(waiting, 5)
    ending = asyncio.create_task(spool.wait_past(1))
    await asyncio.sleep(0)
    spool.close()
    await asyncio.wait_for(ending, 5)


def filled(*chunks: bytes) -> Spool:
    spool = Spool()
    for chunk in chunks:
        spool.feed(chunk)
    spool.close()
    return spool
