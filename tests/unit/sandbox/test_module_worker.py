"""Whatever has got hold of a worker may say what it likes: it is believed only within the rules."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from cloister.errors import ProtocolViolation, RequestError
from cloister.runtime.wasm.worker import ENDED, HEADER, MAX_OUTPUT_BYTES, READY, REFUSED, STDOUT
from cloister.sandbox.module_worker import ModuleWorker
from cloister.sandbox.process import Process

FINE: dict[str, Any] = {
    "code": 3,
    "trap": None,
    "user_s": 0.1,
    "system_s": 0,
    "memory_bytes": 65_536,
}


class Speaking:
    """A process whose standard output says these bytes, a few at a time."""

    def __init__(self, said: bytes) -> None:
        self._left = said
        self.stdin = self.stdout = self

    async def read(self) -> bytes:
        chunk, self._left = self._left[:7], self._left[7:]
        return chunk

    async def write(self, data: bytes) -> None:
        return


def frame(kind: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload), kind) + payload


async def call(said: bytes) -> tuple[int, bytes]:
    heard = bytearray()

    async def say(stream: int, data: bytes) -> None:
        heard.extend(data)

    worker = ModuleWorker(cast(Process, Speaking(said)))
    return (await worker.call({}, b"", say)).code, bytes(heard)


async def test_what_keeps_the_rules_is_heard() -> None:
    said = frame(STDOUT, b"one ") + frame(STDOUT, b"two")
    assert await call(said + frame(ENDED, json.dumps(FINE).encode())) == (3, b"one two")
    assert (await call(frame(ENDED, json.dumps({**FINE, "code": 2**40 + 5}).encode())))[0] == 5


@pytest.mark.parametrize(
    "said",
    [
        frame(READY, b""),
        frame(99, b""),
        HEADER.pack(MAX_OUTPUT_BYTES + 1, STDOUT),
        HEADER.pack(2**32 - 1, ENDED),
        frame(ENDED, b"no json"),
        frame(ENDED, b"[" * 8000),
        frame(ENDED, b"9" * 8000),
        frame(ENDED, b"{}"),
        frame(ENDED, json.dumps({**FINE, "user_s": float("nan")}).encode()),
        frame(ENDED, json.dumps({**FINE, "system_s": float("inf")}).encode()),
        frame(ENDED, json.dumps({**FINE, "memory_bytes": -1}).encode()),
        frame(ENDED, json.dumps({**FINE, "memory_bytes": 2**60}).encode()),
        frame(ENDED, json.dumps({**FINE, "trap": 7}).encode()),
    ],
)
async def test_what_breaks_them_is_a_violation(said: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        await call(said)


async def test_the_words_of_a_refusal_are_one_printable_line() -> None:
    with pytest.raises(RequestError) as caught:
        await call(frame(REFUSED, b"bad\x1b[2J\nmodule \xff" + b"x" * 3000))
    text = str(caught.value)
    assert text.isprintable() and "bad?[2J module" in text and len(text) < 600
