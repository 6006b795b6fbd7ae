"""What is not allowed does not arrive, is recorded, and its allowed twin does arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cloister import Sandbox

Make = Callable[..., Sandbox]

# Of a connection that was reset before it was accepted, the standard library leaves a socket open.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning"
)


@pytest.mark.parametrize(
    ("text", "protocol", "host"),
    [
        (
            "socket.create_connection(('{raw}', {port}), 3).sendall(b'x'); time.sleep(.2)",
            "tcp",
            "{raw}",
        ),
        ("socket.create_connection(('2606:2800:220:1::1', 443), 3)", "tcp", "2606:2800:220:1::1"),
        ("socket.create_connection(('::ffff:{raw}', {port}), 3).recv(1)", "tcp", "{raw}"),
        ("socket.socket(2, 2).sendto(b'q', ('8.8.8.8', 443))", "udp", "8.8.8.8"),
        (
            "socket.socket(10, 2).sendto(b'q', ('2606:2800:220:1::1', 53))",
            "udp",
            "2606:2800:220:1::1",
        ),
        ("socket.create_connection(('169.254.169.254', 80), 3).recv(1)", "tcp", "169.254.169.254"),
    ],
)
async def test_addresses_and_other_protocols_lead_nowhere(
    web: Any, sandbox_to: Make, inside: Any, text: str, protocol: str, host: str, wall: str
) -> None:
    place = {"raw": "10.99.0.1", "six": "2606:2800:220:1::2", "port": web.port}
    program = "import socket\n" + text.format(**place)
    async with sandbox_to(f"web.test:{web.port}") as sandbox:
        await sandbox.run(inside(program))
        traffic = await sandbox.traffic()
        twin = await sandbox.run(f"curl -sS -m 10 http://web.test:{web.port}/hello")
    # gVisor refuses IPv6 before there is a packet that could be seen.
    unseen = wall == "gvisor" and host.startswith("2606:")
    expected = [] if unseen else [(protocol, host.format(**place))]
    assert [(each.protocol, each.host) for each in traffic.denied] == expected
    assert twin.stdout == "hello from outside\n"
    assert web.connections == 1


async def test_datagrams_to_anywhere_are_recorded_and_those_inside_are_not(
    web: Any, sandbox_to: Make, inside: Any
) -> None:
    program = """
import socket
own = socket.socket(2, 2)
own.bind(("127.0.0.1", 0))
out = socket.socket(2, 2)
out.sendto(b"own", own.getsockname())
print(own.recv(3).decode(), socket.gethostbyname("web.test"))
for place in (("8.8.8.8", 443), ("10.1.2.3", 123)):
    try:
        out.sendto(b"x" * 1000, place)
    except OSError:
        continue
"""
    async with sandbox_to(f"web.test:{web.port}") as sandbox:
        result = await sandbox.run(inside(program))
        assert result.stdout.startswith("own 198.18."), result.stderr
        denied = (await sandbox.traffic()).denied
    found = [(each.protocol, each.host, each.port) for each in denied]
    assert found == [("udp", "8.8.8.8", 443), ("udp", "10.1.2.3", 123)]


async def test_the_real_address_of_an_allowed_host_is_no_way_to_it(
    web: Any, sandbox_to: Make, inside: Any
) -> None:
    """127.0.0.1 inside is the sandbox's own, so the server there is another one, or none."""
    async with sandbox_to(f"web.test:{web.port}") as sandbox:
        result = await sandbox.run(f"curl -sS -m 5 http://127.0.0.1:{web.port}/hello")
    assert result.exit_code == 7
    assert web.connections == 0


async def test_an_answer_that_is_private_is_not_dialled_unless_it_was_said(
    web: Any, sandbox_to: Make
) -> None:
    command = f"curl -sS -m 10 http://web.test:{web.port}/hello"
    async with sandbox_to(f"web.test:{web.port}", private=False) as sandbox:
        refused = await sandbox.run(command)
        (denied,) = (await sandbox.traffic()).denied
    assert refused.exit_code != 0
    assert "127.0.0.1, which is not public" in denied.reason
    assert web.connections == 0
    async with sandbox_to(f"web.test:{web.port}") as sandbox:
        assert (await sandbox.run(command)).exit_code == 0


@pytest.mark.parametrize("name", ["other.test", "", "evil.web.test"])
async def test_tls_for_another_name_is_reset(
    tls: Any, sandbox_to: Make, inside: Any, name: str
) -> None:
    text = f"""
import socket, ssl
c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE
def ask(name):
    s = socket.create_connection(("web.test", {tls.port}), 10)
    try:
        t = c.wrap_socket(s, server_hostname=name or None)
        t.sendall(b"GET /as-" + (name or "none").encode() + b" HTTP/1.0\\r\\nHost: x\\r\\n\\r\\n")
        print("got", t.recv(12))
    except ConnectionResetError:
        print("reset")
ask({name!r}); ask("web.test")
"""
    async with sandbox_to(f"web.test:{tls.port}") as sandbox:
        result = (await sandbox.run(inside(text))).check()
        (denied,) = (await sandbox.traffic()).denied
    assert result.stdout.split("\n")[0] == "reset"
    assert "got" in result.stdout.split("\n")[1]
    assert tls.paths == ["/as-web.test"]
    assert "TLS" in denied.reason


async def test_another_host_on_an_allowed_connection_does_not_arrive(
    web: Any, sandbox_to: Make, inside: Any
) -> None:
    text = f"""
import socket
def ask(*hosts):
    s = socket.create_connection(("web.test", {web.port}), 10)
    try:
        for host in hosts:
            head = f"GET /as-{{host}} HTTP/1.1\\r\\nHost: {{host}}:{web.port}\\r\\n\\r\\n"
            s.sendall(head.encode())
        data = b""
        while part := s.recv(65536): data += part
        print(data[9:12])
    except ConnectionResetError:
        print("reset")
ask("other.test"); ask("web.test", "other.test"); ask("WEB.test.")
"""
    async with sandbox_to(f"web.test:{web.port}") as sandbox:
        result = (await sandbox.run(inside(text))).check()
    assert result.stdout.split() == ["reset", "b'404'", "b'404'"]
    assert web.paths == ["/as-web.test", "/as-WEB.test."]
    assert {host for host, _ in web.asked} == {f"web.test:{web.port}"}


@pytest.mark.parametrize(
    "options",
    [
        "-p -x http://127.0.0.1:3128 http://other.test:{port}/",
        "-x http://127.0.0.1:3128 http://other.test:{port}/",
        "-p -x http://127.0.0.1:3128 http://127.0.0.1:{port}/",
        "--socks5-hostname 127.0.0.1:1080 http://other.test:{port}/",
        "--socks5 127.0.0.1:1080 http://127.0.0.1:{port}/",
        "--socks5-hostname 127.0.0.1:1080 http://10.0.0.1:{port}/",
    ],
)
async def test_the_proxies_reach_nothing_more(web: Any, sandbox_to: Make, options: str) -> None:
    async with sandbox_to(f"web.test:{web.port}") as sandbox:
        result = await sandbox.run(f"curl -fsS -m 10 {options.format(port=web.port)}")
        denied = (await sandbox.traffic()).denied
    assert result.exit_code != 0
    assert [each.kind for each in denied] == ["connection"]
    assert web.connections == 0


async def test_a_hosts_file_inside_changes_nothing(web: Any, sandbox_to: Make) -> None:
    command = f"curl -sS -m 5 --resolve web.test:{web.port}:{{}} http://web.test:{web.port}/hello"
    async with sandbox_to(f"web.test:{web.port}") as sandbox:
        forged = await sandbox.run(command.format("10.1.2.3"))
        # The address of the name itself: then it is the name that is reached.
        address = (await sandbox.run("getent ahostsv4 web.test")).stdout.split()[0]
        own = await sandbox.run(command.format(address))
    assert forged.exit_code != 0
    assert own.stdout == "hello from outside\n"
    assert len(web.asked) == 1


async def test_without_egress_there_is_nothing_at_all(web: Any, inside: Any, wall: str) -> None:
    text = f"""
import socket
for place in (("198.18.0.1", 53), ("127.0.0.1", 3128), ("10.0.0.1", {web.port})):
    try: socket.create_connection(place, 3); print("reached")
    except OSError as error: print(error.strerror)
"""
    async with Sandbox() as sandbox:
        result = (await sandbox.run(inside(text))).check()
        traffic = await sandbox.traffic()
    # One kernel's word for it, and the other's.
    nowhere = "No route to host" if wall == "gvisor" else "Network is unreachable"
    assert result.stdout.splitlines() == [nowhere, "Connection refused", nowhere]
    assert traffic.events == ()


async def test_two_sandboxes_share_neither_names_nor_rules(
    web: Any, tls: Any, sandbox_to: Make
) -> None:
    async with (
        sandbox_to(f"web.test:{web.port}") as one,
        sandbox_to(f"other.test:{web.port}") as two,
    ):
        for sandbox, own, foreign in ((one, "web", "other"), (two, "other", "web")):
            good = await sandbox.run(f"curl -sS -m 5 http://{own}.test:{web.port}/{own}")
            bad = await sandbox.run(f"curl -sS -m 5 http://{foreign}.test:{web.port}/{own}-x")
            assert (good.exit_code, bad.exit_code) == (0, 6)
        first = {each.host for each in (await one.traffic()).reached}
        second = {each.host for each in (await two.traffic()).reached}
    assert (first, second) == ({"web.test"}, {"other.test"})
    assert web.paths == ["/web", "/other"]
