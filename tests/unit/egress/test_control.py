"""Frames arrive whole with their descriptors; what is none is an error, and leaks nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from cloister.egress import control


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = control.pair()
    with ours, theirs:
        yield ours, theirs


def test_a_frame_arrives_with_its_descriptors(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    reading, writing = os.pipe()
    control.send(ours, {"do": "serve"}, (writing,))
    os.close(writing)
    received = control.receive(theirs)
    assert received is not None
    frame, (fd,) = received
    os.write(fd, b"x")
    assert frame == {"do": "serve"}
    assert os.read(reading, 2) == b"x"
    for each in (fd, reading):
        os.close(each)


@pytest.mark.parametrize("data", [b"[]", b"nonsense", b"{", b"1"])
def test_what_is_no_frame_is_an_error(
    ends: tuple[socket.socket, socket.socket], data: bytes
) -> None:
    ours, theirs = ends
    ours.send(data)
    with pytest.raises(control.BadFrame):
        control.receive(theirs)


def test_a_frame_too_large_is_not_sent(ends: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(control.BadFrame):
        control.send(ends[0], {"x": "y" * control.MOST_BYTES})


def test_the_end_is_told(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].close()
    assert control.receive(ends[1]) is None


def test_a_document_of_any_size_travels() -> None:
    content = {"names": [f"host{number}.test" for number in range(20_000)]}
    fd = control.document(content)
    try:
        assert control.read_document(fd) == content
    finally:
        os.close(fd)
