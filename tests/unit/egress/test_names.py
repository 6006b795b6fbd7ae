"""Questions for names: what is allowed has an address, all else does not exist."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address
from typing import Any

import dns.message
import dns.opcode
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.egress.book import Book, BookFull
from cloister.egress.bounds import Bounds
from cloister.egress.names import Names


def server(told: list[tuple[str, str, bool]], most: int = 10) -> Names:
    book = Book(most)

    def tell(name: str, record: str, allowed: bool, reason: str) -> None:
        told.append((name, record, allowed))

    return Names(lambda name: name.endswith("allowed.test"), book.give, tell)


def ask(names: Names, name: str, record: str = "A") -> dns.message.Message:
    answer = names.answer(dns.message.make_query(name, record).to_wire())
    assert answer is not None
    return dns.message.from_wire(answer)


@pytest.mark.parametrize("spelt", ["allowed.test", "Allowed.TEST", "allowed.test."])
def test_an_allowed_name_has_one_address_however_it_is_spelt(spelt: str) -> None:
    told: list[tuple[str, str, bool]] = []
    response = ask(server(told), spelt)
    assert [str(each) for each in response.answer[0]] == ["198.18.0.2"]
    assert told == [("allowed.test", "A", True)]


@pytest.mark.parametrize("record", ["AAAA", "HTTPS", "SVCB", "TXT", "MX", "ANY", "NULL"])
def test_an_allowed_name_has_nothing_else(record: str) -> None:
    response = ask(server([]), "allowed.test", record)
    assert response.rcode() == dns.rcode.NOERROR
    assert not response.answer


@pytest.mark.parametrize(
    "name", ["other.test", "allowed.test.evil.test", "1.2.3.4", "a\\000b.test"]
)
@pytest.mark.parametrize("record", ["A", "AAAA", "TXT"])
def test_any_other_name_does_not_exist(name: str, record: str) -> None:
    told: list[tuple[str, str, bool]] = []
    response = ask(server(told), name, record)
    assert response.rcode() == dns.rcode.NXDOMAIN
    assert not response.answer
    assert [allowed for _, _, allowed in told] == [False]


def test_a_full_book_refuses_and_says_so() -> None:
    told: list[tuple[str, str, bool]] = []
    names = server(told, most=1)
    ask(names, "a.allowed.test")
    assert ask(names, "b.allowed.test").rcode() == dns.rcode.REFUSED
    assert told[-1] == ("b.allowed.test", "A", False)


def test_no_answer_is_longer_than_a_question_allows() -> None:
    question = dns.message.make_query("allowed.test", "A", use_edns=0, payload=65_535).to_wire()
    answer = server([]).answer(question)
    assert answer is not None
    assert len(answer) < 100


def test_an_answer_is_not_answered() -> None:
    question = dns.message.make_query("allowed.test", "A")
    assert server([]).answer(dns.message.make_response(question).to_wire()) is None


def test_an_update_is_not_implemented() -> None:
    question = dns.message.make_query("allowed.test", "A")
    question.set_opcode(dns.opcode.NOTIFY)
    answer = server([]).answer(question.to_wire())
    assert answer is not None
    assert dns.message.from_wire(answer).rcode() == dns.rcode.NOTIMP


@given(st.binary(max_size=600))
def test_no_bytes_break_it(data: bytes) -> None:
    server([]).answer(data)


@given(st.binary(min_size=1, max_size=40), st.integers(0, 200))
def test_no_damaged_question_breaks_it(damage: bytes, at: int) -> None:
    question = bytearray(dns.message.make_query("allowed.test", "A").to_wire())
    question[at : at + len(damage)] = damage
    server([]).answer(bytes(question))


async def test_a_question_waits_until_the_owner_has_been_told() -> None:
    told = iter([None, None, IPv4Address("198.18.0.2")])
    names = Names(lambda name: True, lambda name: next(told), lambda *_: None)
    question = dns.message.make_query("a.test", "A").to_wire()
    loop = asyncio.get_running_loop()
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as program,
    ):
        for each in (door, program):
            each.bind(("127.0.0.1", 0))
            each.setblocking(False)
        program.sendto(question, door.getsockname())
        assert names.answer_waiting(door, 10) == 1
        answer = await asyncio.wait_for(loop.sock_recv(program, 600), 5)
    assert b"\xc6\x12\x00\x02" in answer


def test_book_errors_are_of_the_tree() -> None:
    def full(name: str) -> IPv4Address:
        raise BookFull("full")

    assert ask(Names(lambda name: True, full, lambda *_: None), "a.test").rcode() == (
        dns.rcode.REFUSED
    )


async def test_questions_come_by_datagram_and_by_connection(opened: Any) -> None:
    question = dns.message.make_query("web.test", "A").to_wire()
    async with opened("web.test") as doors:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect(("127.0.0.1", doors.names))
            await loop.sock_sendall(sock, question)
            by_datagram = await asyncio.wait_for(loop.sock_recv(sock, 600), 5)
        reader, writer = await asyncio.open_connection("127.0.0.1", doors.names_tcp)
        writer.write(len(question).to_bytes(2, "big") + question)
        size = int.from_bytes(await asyncio.wait_for(reader.readexactly(2), 5), "big")
        by_connection = await reader.readexactly(size)
        writer.close()
        assert by_datagram == by_connection
        assert b"\xc6\x12\x00\x02" in by_datagram
        events = await doors.events()
        assert [each["host"] for each in events if each["kind"] == "name"] == ["web.test"] * 2


async def test_names_are_answered_while_all_connections_are_taken_and_the_other_way_round(
    opened: Any, far_end: Any, talks: Any
) -> None:
    at = f"web.test:{far_end.port}"
    request = f"GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\n\r\n".encode()
    question = dns.message.make_query("web.test", "A").to_wire()
    bounds = Bounds(connections=2, name_connections=1)
    settings = {"private": ("web.test",), "answers": {"web.test": ["127.0.0.1"]}, "bounds": bounds}
    async with opened(at, **settings) as doors:
        held = [await asyncio.open_connection("127.0.0.1", doors.http) for _ in range(2)]
        # Both have been accepted: a third is not served.
        third = asyncio.ensure_future(talks(doors.http, request))
        reader, asking = await asyncio.open_connection("127.0.0.1", doors.names_tcp)
        asking.write(len(question).to_bytes(2, "big") + question)
        size = int.from_bytes(await asyncio.wait_for(reader.readexactly(2), 20), "big")
        assert b"\xc6\x12\x00\x02" in await reader.readexactly(size)
        assert not third.done()
        # And a question that is held up holds up no connection.
        for _, writer in held:
            writer.close()
        assert (await asyncio.wait_for(third, 20)).endswith(b"ok")
        asking.close()
