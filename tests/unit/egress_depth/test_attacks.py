"""Attempts to have what the rules, the secrets or a person have not allowed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cloister.egress.bounds import Bounds
from cloister.model.approvals import Answer, Question

VALUE, STAND_IN = "ghp_TheRealValue1234567890", "ghp_PlaceHolderXYZ98765432"
VALUES = {"TOKEN": {"placeholder": STAND_IN, "value": VALUE}}


def table(*hosts: str, **more: str) -> dict[str, Any]:
    return {"TOKEN": {"from": "env:X", "hosts": list(hosts), "header": "Authorization", **more}}


@pytest.mark.parametrize("odd", ["\x0b", "\x0c", "\x01", "\x7f"])
async def test_no_error_of_ours_has_a_value_in_it(
    odd: str, opened: Any, served: Any, anything: Any, get: Any, client_of: Any
) -> None:
    async with served() as far:
        secrets = table(f"web.test:{far.port}")
        async with opened(anything(far.port), secrets=secrets, values=VALUES) as doors:
            client = client_of(*await doors.connect("web.test", far.port, alpn=("h2",)))
            bad = client.ask(*get(far.port, "/a"), ("authorization", f"Bearer {STAND_IN}{odd}x"))
            good = client.ask(*get(far.port, "/a"), ("authorization", f"Bearer {STAND_IN}"))
            await client.wait(bad, good)
            told = str(await doors.events())
            client.writer.close()
    shown = str(client.answers) + str(client.bodies)
    assert VALUE not in shown and VALUE not in told
    assert client.gone or client.answers[good][":status"] == "200"


async def next_frame(doors: Any, *kinds: str) -> dict[str, Any]:
    """Return the next thing of these kinds that the owner is told."""
    from cloister.egress import control

    async with asyncio.timeout(5):
        while True:
            try:
                received = control.receive(doors.owner)
            except BlockingIOError:
                await asyncio.sleep(0.01)
                continue
            assert received is not None
            if received[0]["do"] in kinds:
                return received[0]


def once() -> dict[str, Any]:
    return Answer("once", "me").as_dict()


def post(port: int, path: str, *headers: str, body: str = "") -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: web.test:{port}", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", body]).encode()


def asking(port: int, *methods: str) -> list[dict[str, Any]]:
    methods = methods or ("POST",)
    return [{"name": "ask", "host": f"web.test:{port}", "methods": methods, "effect": "ask"}]


async def test_the_first_use_that_was_allowed_for_one_host_is_not_for_another(
    opened: Any, served: Any
) -> None:
    async with served() as far:
        hosts = [f"web.test:{far.port}", f"other.test:{far.port}"]
        rules = [{"name": host, "host": host, "record": True, "effect": "allow"} for host in hosts]
        secrets = table(*hosts, first_use="ask")
        async with opened(rules, secrets=secrets, values=VALUES) as doors:
            asked = []
            for host in (hosts[0], hosts[0], hosts[1]):
                name = host.partition(":")[0]
                text = f"GET / HTTP/1.1\r\nHost: {host}\r\nAuthorization: {STAND_IN}\r\n"
                talking = asyncio.create_task(
                    doors.talk(name, far.port, f"{text}Connection: close\r\n\r\n".encode())
                )
                if len(asked) < 1 or host == hosts[1]:
                    frame = await next_frame(doors, "ask")
                    asked.append(frame["question"]["host"])
                    doors.ward.reply(frame["number"], once())
                assert (await talking).startswith(b"HTTP/1.1 200")
    assert asked == ["web.test", "other.test"]


def test_a_header_said_often_hides_no_other_and_not_the_body() -> None:
    many = [(b"user-agent", b"\xff" * 3000)] * 20
    headers = [*many, (b"x-http-method-override", b"DELETE")]
    question = Question.of_request(
        *("rule", "web.test", 443),
        method="POST",
        path="/a",
        target="/a",
        headers=headers,
        body=b"body",
    )
    shown = dict(question.details)
    assert shown["x-http-method-override"] == "DELETE"
    assert shown["body"].startswith("4 bytes")
    # It must fit into a frame, whatever is in it.
    assert len(str(question.as_dict())) < 16_000


async def test_a_question_has_all_that_would_be_sent(opened: Any, served: Any) -> None:
    async with served() as far, opened(asking(far.port)) as doors:
        text = (
            f"POST /a HTTP/1.1\r\nHost: web.test:{far.port}\r\nTransfer-Encoding: chunked\r\n"
            "Connection: close\r\n\r\n1\r\nx\r\n0\r\nX-Unseen: 1\r\n\r\n"
        )
        hidden = await doors.talk("web.test", far.port, text.encode())
        assert hidden.startswith(b"HTTP/1.1 403") and b"trailers" in hidden
        talking = asyncio.create_task(
            doors.talk("web.test", far.port, text.replace("X-Unseen: 1\r\n", "").encode())
        )
        frame = await next_frame(doors, "ask")
        doors.ward.reply(frame["number"], once())
        assert (await talking).startswith(b"HTTP/1.1 200")
    assert len(far.asked) == 1


async def test_a_websocket_is_asked_about_as_one(opened: Any, served: Any) -> None:
    async with served() as far, opened(asking(far.port, "GET")) as doors:
        scopes = []
        for more in ("", "Connection: Upgrade\r\nUpgrade: websocket\r\n"):
            _, writer = await doors.connect("web.test", far.port)
            writer.write(f"GET /a HTTP/1.1\r\nHost: web.test:{far.port}\r\n{more}\r\n".encode())
            question = Question.from_dict((await next_frame(doors, "ask"))["question"])
            scopes.append(question.scope)
            writer.close()
    assert "WebSocket" in question.summary()
    assert scopes[0] != scopes[1]


@pytest.mark.parametrize("header", ["X-HTTP-Method-Override", "X-Method-Override", "X-HTTP-Method"])
async def test_another_method_by_a_header_is_judged_too(
    header: str, opened: Any, served: Any
) -> None:
    async with served() as far:
        host = f"web.test:{far.port}"
        rules = [{"name": "w", "host": host, "methods": ["POST", "GET"], "effect": "allow"}]
        async with opened(rules) as doors:
            port, last = far.port, "Connection: close"
            bad = await doors.talk("web.test", port, post(port, "/a", f"{header}: delete", last))
            good = await doors.talk("web.test", port, post(port, "/b", f"{header}: GET", last))
            both = [f"{header}: GET", f"{header}: POST", "X-HTTP-Method: PUT", last]
            several = await doors.talk("web.test", port, post(port, "/c", *both))
    assert bad.startswith(b"HTTP/1.1 403")
    assert good.startswith(b"HTTP/1.1 200")
    assert several.startswith(b"HTTP/1.1 400")
    assert far.paths == ["/b"]


async def test_a_method_by_a_header_that_is_asked_for_has_a_question_of_its_own(
    opened: Any, served: Any
) -> None:
    async with served() as far:
        host = f"web.test:{far.port}"
        rules = [
            {"name": "ask", "host": host, "methods": ["DELETE"], "effect": "ask"},
            {"name": "w", "host": host, "methods": ["POST"], "effect": "allow"},
        ]
        async with opened(rules) as doors:
            _, writer = await doors.connect("web.test", far.port)
            writer.write(post(far.port, "/a", "X-HTTP-Method-Override: DELETE"))
            question = (await next_frame(doors, "ask"))["question"]
            writer.close()
    assert question["rule"] == "ask"
    assert question["subject"] == "which may be taken for DELETE"
    assert far.asked == []


async def test_what_waits_for_a_person_is_held_up_to_a_limit(
    opened: Any, served: Any, client_of: Any, get: Any
) -> None:
    bounds = Bounds(held_bytes=40_000, farewell_s=0.2)
    async with served() as far, opened(asking(far.port), bounds=bounds) as doors:
        client = client_of(*await doors.connect("web.test", far.port, alpn=("h2",)))
        first = client.ask(*get(far.port, "/a", "POST"), body=b"x" * 16_000)
        client.writer.write(client.http.data_to_send())
        frame = await next_frame(doors, "ask")
        # Begun and not ended: these wait, and are kept meanwhile.
        more = [client.http.get_next_available_stream_id() + 2 * at for at in range(3)]
        for number in more:
            client.http.send_headers(number, get(far.port, f"/{number}", "POST"))
            client.bodies[number] = b""
            client.http.send_data(number, b"y" * 10_000)
            client.writer.write(client.http.data_to_send())
            await client.writer.drain()
            await asyncio.sleep(0.05)
        await client.wait(more[-1])
        assert client.answers[more[-1]][":status"] == "403"
        assert b"are held" in client.bodies[more[-1]]
        doors.ward.reply(frame["number"], once())
        await client.wait(first)
        assert client.answers[first][":status"] == "200"
        client.writer.close()
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert doors.ward._held_bytes == 0
    assert far.paths == ["/a"]


async def test_more_streams_than_a_sandbox_may_have_are_refused_and_others_served(
    opened: Any, served: Any, client_of: Any, get: Any
) -> None:
    bounds = Bounds(requests=4)
    async with served() as far, opened(asking(far.port), bounds=bounds) as doors:
        flood = client_of(*await doors.connect("web.test", far.port, alpn=("h2",)))
        numbers = [flood.ask(*get(far.port, f"/{at}", "POST"), body=b"") for at in range(8)]
        await flood.wait(*numbers[4:])
        assert flood.reset == set(numbers[4:])
        flood.writer.close()
        for _ in range(100):
            await asyncio.sleep(0.01)
            if doors.ward._requests == 0:
                break
        assert doors.ward._requests == 0
        assert doors.ward.open_request()


@pytest.mark.parametrize(
    "header",
    ["X-Original-URL: /shut/a", "X-Rewrite-URL: /shut/a", "X_Forwarded_Prefix: /shut", "X-Host: b"],
)
async def test_a_path_or_host_by_a_header_does_not_arrive(
    header: str, opened: Any, served: Any, anything: Any
) -> None:
    async with served() as far, opened(anything(far.port)) as doors:
        text = post(far.port, "/a", header, "X-Kept: 1", "Connection: close")
        assert (await doors.talk("web.test", far.port, text)).startswith(b"HTTP/1.1 200")
    assert "x-kept" in far.asked[0][2]
    assert header.partition(":")[0].lower() not in far.asked[0][2]


async def test_a_second_answer_to_one_request_is_not_the_answer_to_the_next(
    opened: Any, served: Any, anything: Any
) -> None:
    async with served() as far, opened(anything(far.port)) as doors:
        forged = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
        far.answer = lambda path, headers, body: (
            (b"Content-Length: 2\r\n\r\nok" + forged + b"\r\nX: ", b"")
            if path == "/first"
            else (b"", b"true")
        )
        get = "GET {} HTTP/1.1\r\nHost: web.test:{}\r\n{}\r\n"
        first = get.format("/first", far.port, "").encode()
        second = get.format("/second", far.port, "Connection: close\r\n").encode()
        seen = await doors.talk("web.test", far.port, first, second)
    assert b"forged" not in seen
    assert seen.endswith(b"true")
    assert far.paths == ["/first", "/second"]


async def test_a_method_by_a_header_in_another_spelling_is_judged_too(
    opened: Any, served: Any
) -> None:
    async with served() as far:
        host = f"web.test:{far.port}"
        rules = [{"name": "w", "host": host, "methods": ["POST"], "effect": "allow"}]
        async with opened(rules) as doors:
            text = post(far.port, "/a", "X_HTTP_Method_Override: DELETE", "Connection: close")
            seen = await doors.talk("web.test", far.port, text)
    assert seen.startswith(b"HTTP/1.1 403")
    assert far.asked == []


async def test_a_value_does_not_come_back_by_another_port_of_its_host(
    opened: Any, served: Any, anything: Any
) -> None:
    async with served() as far, served(tls=False) as plain:
        plain.answer = lambda path, headers, body: (b"", f"it is {VALUE}".encode())
        rules = [
            *anything(far.port),
            {"name": "p", "host": f"web.test:{plain.port}", "record": True, "effect": "allow"},
        ]
        secrets = table(f"web.test:{far.port}")
        async with opened(rules, secrets=secrets, values=VALUES) as doors:
            text = post(plain.port, "/", "Connection: close")
            seen = await doors.talk("web.test", plain.port, text, tls=False)
    assert seen.startswith(b"HTTP/1.1 200") and seen.endswith(b"it is " + b"*" * len(VALUE))


async def test_a_server_that_says_back_as_much_as_fits_tells_next_to_nothing(
    opened: Any, served: Any, anything: Any
) -> None:
    async with served() as far:
        far.answer = lambda path, headers, body: (
            b"",
            "|".join((VALUE[:-1], VALUE[1:], VALUE[:15], "ghp_", STAND_IN)).encode(),
        )
        secrets = table(f"web.test:{far.port}")
        async with opened(anything(far.port), secrets=secrets, values=VALUES) as doors:
            text = post(far.port, "/", "Connection: close")
            seen = await doors.talk("web.test", far.port, text)
    told = seen.rpartition(b"\r\n\r\n")[2].decode().split("|")
    # Of each no more than one character that the program could have left out.
    assert [each.strip("*") for each in told[:3]] == [VALUE[-2], VALUE[1], VALUE[14]]
    assert told[3:] == ["ghp_", STAND_IN]
