"""APR: what waits for a person passes by that person's answer, to exactly that, and by no other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from cloister.errors import CloisterError, RequestError
from cloister.model.approvals import How, Question
from cloister.node.approval_client import Listed, answer_question, list_questions
from cloister.node.approval_queue import places
from cloister.policy import Approvals, Policy
from cloister.verify.arena import Arena
from cloister.verify.case import case
from cloister.verify.cases.way_out import ALLOWED, ASK, WayOut, way_out

# Says whether the server was reached: directly, and by the two proxies inside.
_WAYS = (
    ASK
    + """
def words(port, absolute):
    place = f"http://allowed.test:{port}/" if absolute else "/"
    return f"GET {place} HTTP/1.1\\r\\nHost: allowed.test:{port}\\r\\n\\r\\n".encode()
def direct(port):
    return ask("allowed.test", port, words(port, False))
def by_http(port):
    return ask(None, port, words(port, True), ("127.0.0.1", 3128))
def by_socks(port):
    with socket.create_connection(("127.0.0.1", 1080), 30) as sock:
        sock.sendall(b"\\x05\\x01\\0")
        sock.recv(2)
        sock.sendall(b"\\x05\\x01\\0\\x03\\x0callowed.test" + int(port).to_bytes(2, "big"))
        if sock.recv(10)[1]:
            return "denied"
        sock.sendall(words(port, False))
        return sock.recv(4096).decode()
def attempt(port, *ways):
    found = {}
    for way in ways:
        try:
            found[way] = "reached" in globals()[way](port)
        except OSError:
            found[way] = False
    return found
"""
)


@contextlib.asynccontextmanager
async def _asking(
    arena: Arena, wait: str = "20s", webhook: str | None = None, **settings: Any
) -> AsyncIterator[WayOut]:
    policy = Policy(approvals=Approvals(wait=wait, webhook=webhook))
    async with way_out(arena, asks=True, policy=policy, **settings) as out:
        yield out


async def _try(arena: Arena, out: WayOut, *ways: str) -> dict[str, bool]:
    attempt = await arena.attempt(out.sandbox, _WAYS, str(out.port), *(ways or ("direct",)))
    found: dict[str, bool] = arena.expect_allowed(attempt)
    return found


async def _held(out: WayOut) -> Listed:
    """Wait for the question of a sandbox."""
    async with asyncio.timeout(20):
        while True:
            for each in await asyncio.to_thread(list_questions):
                if each.sandbox == out.sandbox.id:
                    return each
            await asyncio.sleep(0.02)


@case("APR-01", "no answer, a denial, nobody there", "critical")
async def unanswered(arena: Arena) -> None:
    async with _asking(arena, "500ms") as out:
        await _expect_denied(arena, out)
    said = [True, False]
    async with _asking(arena, approve=lambda _: said.pop(0)) as out:
        arena.expect((await _try(arena, out))["direct"], "what is approved is not let through")
        arena.expect(len(out.arrived) == 1, f"it arrived {len(out.arrived)} times")
        out.arrived.clear()
        await _expect_denied(arena, out)


async def _expect_denied(arena: Arena, out: WayOut) -> None:
    found = await _try(arena, out)
    arena.expect(not any(found.values()), f"reached without an answer: {found}")
    out.expect_nothing_arrived(arena)
    denied = await out.denied()
    arena.expect(f"{ALLOWED}:{out.port}" in denied, f"not recorded: {denied}")


@case("APR-02", "something else than what was asked about", "critical")
async def swapped(arena: Arena) -> None:
    one, other = (
        Question.of_request(
            *("rule", ALLOWED, 443),
            method="POST",
            path="/a",
            target="/a",
            headers=[(b"x", b"1")],
            body=body,
        )
        for body in (b"one", b"two")
    )
    arena.expect(one.digest != other.digest, "two bodies have one digest")
    async with _asking(arena) as out:
        trying = asyncio.ensure_future(_try(arena, out))
        listed = await _held(out)
        from cloister.node.approval_client import _call

        forged = {"do": "answer", "number": listed.number, "digest": other.digest, "answer": "once"}
        try:
            await asyncio.to_thread(_call, listed.place, forged, required=True)
        except RequestError:
            pass
        else:
            arena.expect(False, "an answer to another question was taken")
        out.expect_nothing_arrived(arena)
        await asyncio.to_thread(answer_question, listed.number, "once")
        arena.expect((await trying)["direct"], "the answer to it was not taken")


@case("APR-03", "an answer used twice", "critical")
async def replayed(arena: Arena) -> None:
    answers: tuple[How, ...] = ("once", "deny")
    async with _asking(arena) as out:
        numbers = []
        for how in answers:
            trying = asyncio.ensure_future(_try(arena, out))
            listed = await _held(out)
            numbers.append(listed.number)
            await asyncio.to_thread(answer_question, listed.number, how)
            arena.expect((await trying)["direct"] is (how == "once"), f"{how} was not obeyed")
            try:
                await asyncio.to_thread(answer_question, listed.number, "once")
            except CloisterError:
                continue
            arena.expect(False, "a number was answered twice")
        arena.expect(len(set(numbers)) == 2, f"one number for two questions: {numbers}")
        arena.expect(len(out.arrived) == 1, "one answer let two through")


@case("APR-04", "an answer from inside", "critical")
async def from_inside(arena: Arena) -> None:
    probe = (
        "import glob\n"
        "def attempt(*paths):\n"
        "    found = []\n"
        "    for path in (*paths, *('\\0' + path for path in paths), *glob.glob('/run/**/*.sock',"
        " recursive=True)):\n"
        "        with socket.socket(socket.AF_UNIX) as sock:\n"
        "            try:\n"
        "                sock.connect(path)\n"
        "                found.append(path)\n"
        "            except OSError:\n"
        "                continue\n"
        "    return found"
    )
    async with _asking(arena) as out:
        trying = asyncio.ensure_future(_try(arena, out))
        listed = await _held(out)
        paths = [str(place) for place in places()]
        reached = arena.expect_allowed(await arena.attempt(out.sandbox, probe, *paths))
        arena.expect(reached == [], f"inside can connect to {reached}")
        out.expect_nothing_arrived(arena)
        # The twin: the same socket takes the answer of somebody outside.
        await asyncio.to_thread(answer_question, listed.number, "once")
        arena.expect((await trying)["direct"], "an answer from outside is not taken")


@case("APR-05", "a request that forges what a person reads", "high")
async def display(arena: Arena) -> None:
    odd = "/\x1b[2J\x1b[31mapproved\r\n7  other: harmless\u202e\u2066\u0430\x00" + "x" * 2**20
    question = Question.of_request(
        *("a rule", ALLOWED, 443),
        method="GET",
        path=odd,
        target=odd,
        headers=[(b"user-agent", b"\x1b]0;title\x07"), (b"content-type", b"a\nwhat: b")],
        body=b"",
    )
    lines = question.lines()
    for line in lines:
        arena.expect(line.isascii() and line.isprintable(), f"shown as it is: {line[:80]!r}")
        arena.expect(len(line) < 10_000, f"a line of {len(line)} characters")
    cut = [line for line in lines if line.startswith("path: ")]
    arena.expect("characters, SHA-256" in cut[0], "what was cut is not told by its digest")
    plain = Question("connection", "a rule", ALLOWED, 443).lines()
    arena.expect(f"host: {ALLOWED}:443" in plain, f"a plain question is shown as {plain}")


@case("APR-06", "questions to tire whoever answers", "high")
async def flood(arena: Arena) -> None:
    asked: list[Question] = []
    answered = asyncio.Event()

    async def approve(question: Question) -> bool:
        asked.append(question)
        await answered.wait()
        return True

    source = (
        "import time\n"
        "def attempt(port, count):\n"
        "    socks = []\n"
        "    for _ in range(int(count)):\n"
        "        try:\n"
        "            socks.append(socket.create_connection(('allowed.test', int(port)), 20))\n"
        "        except OSError:\n"
        "            continue\n"
        "    time.sleep(1)\n"
        "    return len(socks)"
    )
    # Nobody's silence is to be taken for a denial meanwhile, however long 200 connections take.
    async with _asking(arena, "300s", approve=approve) as out:
        arena.expect_allowed(await arena.attempt(out.sandbox, source, str(out.port), "200"))
        arena.expect(len(asked) <= 8, f"{len(asked)} questions were asked at once")
        out.expect_nothing_arrived(arena)
        answered.set()
        arena.expect((await _try(arena, out))["direct"], "nothing passes after a flood")


@case("APR-07", "the same by another way", "high")
async def other_ways(arena: Arena) -> None:
    ways = ("direct", "by_http", "by_socks")
    async with _asking(arena, approve=lambda _: False) as out:
        found = await _try(arena, out, *ways)
        arena.expect(not any(found.values()), f"reached without an answer: {found}")
        out.expect_nothing_arrived(arena)
    async with _asking(arena, approve=lambda _: True) as out:
        found = await _try(arena, out, *ways)
        arena.expect(all(found.values()), f"approved, and not reached: {found}")


@case("APR-08", "the way to a person is down", "high")
async def down(arena: Arena) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    is_up = [True, False]

    async def approve(question: Question) -> bool:
        if not is_up.pop(0):
            await asyncio.Event().wait()
        return True

    webhook = f"http://127.0.0.1:{port}/ask"
    async with _asking(arena, "1s", webhook=webhook, approve=approve) as out:
        arena.expect((await _try(arena, out))["direct"], "what is approved is not let through")
        out.arrived.clear()
        await _expect_denied(arena, out)


@case("APR-09", "two answers at once, and an end in the middle", "medium")
async def races(arena: Arena) -> None:
    async with _asking(arena) as out:
        trying = asyncio.ensure_future(_try(arena, out))
        listed = await _held(out)
        both = await asyncio.gather(
            asyncio.to_thread(answer_question, listed.number, "once"),
            asyncio.to_thread(answer_question, listed.number, "deny"),
            return_exceptions=True,
        )
        taken = [not isinstance(each, BaseException) for each in both]
        arena.expect(taken.count(True) == 1, f"of two answers {taken.count(True)} were taken")
        found = await trying
        arena.expect(found["direct"] is taken[0], f"answered {taken}, reached {found}")
    async with _asking(arena) as out:
        process = await out.sandbox.start(["/usr/bin/python3", "-c", _CONNECT, str(out.port)])
        listed = await _held(out)
        await out.sandbox.stop()
        with contextlib.suppress(CloisterError):
            await process.wait()
        late = await asyncio.gather(
            asyncio.to_thread(answer_question, listed.number, "once"), return_exceptions=True
        )
        arena.expect(isinstance(late[0], CloisterError), "an answer came after the end")
        out.expect_nothing_arrived(arena)


_CONNECT = """
import socket, sys
with socket.create_connection(("allowed.test", int(sys.argv[1])), 20) as sock:
    place = f"allowed.test:{sys.argv[1]}"
    sock.sendall(f"GET / HTTP/1.1\\r\\nHost: {place}\\r\\n\\r\\n".encode())
    sock.recv(100)
"""
