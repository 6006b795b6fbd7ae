"""What is taken of a program's output once it has ended, whether anybody watched it or not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from cloister.wire import PipeIncoming
from cloister.wire.streams import open_pipe


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A read end, which whoever reads closes, and a write end."""
    read, write = open_pipe()
    yield read, write
    os.close(write)


async def all_of(stream: PipeIncoming) -> bytes:
    return b"".join([chunk async for chunk in stream])


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("unblocked", [False, True])
@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 60_000])
async def test_everything_written_is_taken_and_then_the_stream_ends(
    unblocked: bool, size: int
) -> None:
    read, write = open_pipe()
    stream = PipeIncoming(read)
    if unblocked:
        stream.unblock()
    written = os.urandom(size)
    os.write(write, written)
    os.close(write)
    stream.finish()
    assert await all_of(stream) == written
    await asyncio.sleep(0)
    assert not is_open(read)


@pytest.mark.parametrize("unblocked", [False, True])
async def test_one_left_behind_with_the_pipe_is_not_waited_for(
    pipe: tuple[int, int], unblocked: bool
) -> None:
    read, write = pipe
    stream = PipeIncoming(read)
    if unblocked:
        stream.unblock()
    os.write(write, b"last")
    stream.finish()
    assert await all_of(stream) == b"last"
    with pytest.raises(BrokenPipeError):
        os.write(write, b"more")


async def test_one_that_wrote_nothing_and_was_left_behind_finds_nobody_reading(
    pipe: tuple[int, int],
) -> None:
    read, write = pipe
    stream = PipeIncoming(read)
    stream.unblock()
    stream.finish()
    assert stream.exhausted
    # Closed when those who wait have been told, and once: the number may be another's by then.
    stream.close()
    await asyncio.sleep(0)
    with pytest.raises(BrokenPipeError):
        os.write(write, b"more")


async def test_what_a_program_reads_from_still_blocks(pipe: tuple[int, int]) -> None:
    read, write = pipe
    assert os.get_blocking(read) and os.get_blocking(write)
    stream = PipeIncoming(read)
    stream.unblock()
    assert not os.get_blocking(read) and os.get_blocking(write)
    stream.close()
