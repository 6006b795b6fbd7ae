"""The way out of machines: the same gateway and the same rules, and no network device in them."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloister import Limits, Process, RequestError, Sandbox
from cloister.model.approvals import Answer, Question
from cloister.node import Node
from cloister.policy import Approvals, DirectoryRoot, Egress, EgressRule, Policy

from ..contract.machine_root import PLACE, machine_root

LOOPBACK = "127.0.0.1"
NAMES = ("web.test", "other.test")
# Says of each line of its input how that went, so that one start of Python serves many.
ASKING = """
import socket, sys, urllib.request
def fetch(url, proxy=None, **headers):
    handlers = [urllib.request.ProxyHandler({} if proxy is None else {"http": proxy})]
    opener = urllib.request.build_opener(*handlers)
    return opener.open(urllib.request.Request(url, headers=headers), timeout=60).read()
def socks(host, port):
    s = socket.create_connection(("127.0.0.1", 1080), 60)
    s.sendall(b"\\x05\\x01\\x00" + b"\\x05\\x01\\x00\\x03" + bytes([len(host)]) + host.encode()
              + port.to_bytes(2, "big"))
    got = b""
    while len(got) < 12: got += s.recv(12 - len(got)) or 1 / 0
    return got[3]
def tcp(host, port, family=socket.AF_INET):
    s = socket.socket(family); s.settimeout(60); s.connect((host, port)); return s.recv(100)
def udp(host, port):
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", (host, port))
def name(host):
    return socket.getaddrinfo(host, 80, family=socket.AF_INET)[0][4][0]
for line in sys.stdin:
    try: print("got", eval(line), flush=True)
    except Exception as error: print(type(error).__name__, str(error)[:80], flush=True)
"""


@pytest.fixture(autouse=True)
async def place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_MICROVM", str(PLACE))
    Node.current().gateway.answers = {name: [LOOPBACK] for name in NAMES}


def machine(**settings: Any) -> Sandbox:
    limits = Limits(memory="192MiB", pids=64)
    root = DirectoryRoot(str(machine_root()))
    return Sandbox(**{"trust": "hostile", "limits": limits, "root": root, **settings})


async def asked(sandbox: Sandbox, *lines: str) -> list[str]:
    done = await sandbox.run(["python3", "-c", ASKING], stdin="\n".join(lines), timeout=100)
    return done.check().stdout.splitlines()


async def test_what_is_allowed_is_reached_and_nothing_else_is(web: Any, echo: Any) -> None:
    at = f"http://web.test:{web.port}"
    allow = (f"web.test:{web.port}", f"web.test:{echo.port}")
    async with machine(egress=Egress(allow, ["web.test"])) as sandbox:
        assert sandbox.posture.facts["interfaces"] == "lo"
        said = await asked(
            sandbox,
            "name('web.test')",
            f"fetch('{at}/hello')",
            f"len(fetch('{at}/large'))",
            f"fetch('{at}/hello?proxy', 'http://127.0.0.1:3128')",
            f"socks('web.test', {web.port})",
            f"tcp('web.test', {echo.port})",
            "name('other.test')",
            f"fetch('http://other.test:{web.port}/hello', 'http://127.0.0.1:3128')",
            f"socks('other.test', {web.port})",
            f"tcp('10.1.2.3', {web.port})",
            f"tcp('127.0.0.1', {web.port})",
            "udp('9.9.9.9', 443)",
            "tcp('2606:2800:220:1::1', 443, socket.AF_INET6)",
        )
        traffic = await sandbox.traffic()
    assert said[:6] == [
        "got 198.18.0.2",
        "got b'hello from outside\\n'",
        "got 8388608",
        "got b'hello from outside\\n'",
        "got 0",
        "got b'220 welcome\\n'",
    ]
    assert said[6].startswith("gaierror")
    assert "403" in said[7] and said[8] != "got 0"
    assert said[9].startswith("ConnectionResetError")
    assert said[10].startswith("ConnectionRefusedError")
    assert not [each for each in said[11:] if not each.startswith("PermissionError")]
    assert web.paths == ["/hello", "/large", "/hello?proxy"]
    assert echo.heard == []
    denied = {(each.protocol, each.host) for each in traffic.denied}
    assert {("tcp", "10.1.2.3"), ("udp", "9.9.9.9"), ("tcp", "2606:2800:220:1::1")} <= denied
    assert ("other.test", "name") in {(each.host, each.kind) for each in traffic.denied}


async def test_requests_are_read_and_a_secret_is_found_nowhere_inside(
    tls: Any, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = f"ghp_{secrets.token_hex(18)}"
    monkeypatch.setenv("CANARY", canary)
    monkeypatch.setenv("CLOISTER_CA_FILE", str(certificate))
    rule = EgressRule(
        name="read", host=f"web.test:{tls.port}", methods=["GET"], paths=["/hello"], effect="allow"
    )
    egress = Egress((), ["web.test"], (rule,))
    table = {
        "TOKEN": {
            "from": "env:CANARY",
            "hosts": [f"web.test:{tls.port}"],
            "header": "Authorization",
        }
    }
    at = f"https://web.test:{tls.port}"
    token = "Authorization='Bearer ' + __import__('os').environ['TOKEN']"
    async with machine(egress=egress, secrets=table) as sandbox:
        said = await asked(
            sandbox, f"fetch('{at}/hello', {token})", f"fetch('{at}/elsewhere', {token})"
        )
        look = "env; cat /proc/*/environ /proc/*/cmdline /run/cloister/*; cat /etc/ssl/certs/*"
        inside = await sandbox.run(look)
    assert said[0] == "got b'hello from outside\\n'"
    assert "403" in said[1]
    assert tls.paths == ["/hello"]
    assert tls.told == [f"Bearer {canary}"]
    assert "TOKEN=ghp_" in inside.stdout
    assert canary not in inside.stdout + inside.stderr + "".join(said)
    # Of the gateway's authority it has what everybody may read.
    assert "BEGIN CERTIFICATE" in inside.stdout and "PRIVATE KEY" not in inside.stdout


async def test_a_person_is_asked_a_budget_holds_and_a_dead_gateway_is_a_closed_door(
    web: Any, echo: Any
) -> None:
    questions: list[Question] = []

    async def approve(question: Question) -> Answer | bool:
        questions.append(question)
        return len(questions) == 1

    rule = EgressRule(name="ask", host=f"web.test:{web.port}", effect="ask", private=True)
    egress = Egress((f"other.test:{echo.port}",), NAMES, (rule,), budget={"connections": 3})
    policy = Policy(egress=egress, approvals=Approvals(wait="60s"))
    gateway = Node.current().gateway
    async with machine(policy=policy, approve=approve) as sandbox:
        fetch = f"fetch('http://web.test:{web.port}/hello')"
        said = await asked(sandbox, fetch, fetch)
        assert said[0] == "got b'hello from outside\\n'"
        assert said[1].startswith(("ConnectionResetError", "URLError"))
        assert len(questions) == 2 and web.paths == ["/hello"]

        text = f"""
import socket
def dial(): return socket.create_connection(("other.test", {echo.port}), 60)
s = dial(); print(s.recv(100), flush=True)
try: print(s.recv(100), flush=True)
except ConnectionResetError: print("reset", flush=True)
for _ in range(2):
    try: print(dial().recv(100), flush=True)
    except OSError as error: print(type(error).__name__, flush=True)
"""
        program = await sandbox.start(["python3", "-c", text])
        assert await program.stdout.read() == b"b'220 welcome\\n'\n"
        first = gateway.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        rest = b""
        while part := await program.stdout.read():
            rest += part
        await program.wait()
    # The third connection is within the budget and served by another gateway; the fourth is not.
    assert rest.splitlines() == [b"reset", b"b'220 welcome\\n'", b"ConnectionResetError"]


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_a_gateway_killed_twenty_times_loses_connections_and_nothing_else(web: Any) -> None:
    text = f"""
import urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
while True:
    try:
        said = opener.open("http://web.test:{web.port}/hello", timeout=60).read()
        print("served" if said == b"hello from outside\\n" else said, flush=True)
    except OSError as error:
        print("cut", flush=True)
"""
    chance = random.Random(seed := random.getrandbits(32))
    gateway = Node.current().gateway
    killed: set[int] = set()
    async with machine(egress=Egress((f"web.test:{web.port}",), ["web.test"])) as sandbox:
        program = await sandbox.start(["python3", "-c", text])
        said: list[bytes] = []
        for _ in range(20):
            # By one that was there after the last kill, and none that was read before it.
            await _until_served(program, said)
            await asyncio.sleep(chance.random() * 0.3)
            pid = gateway.pid
            assert pid is not None and pid not in killed, seed
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
            await _until(lambda: gateway.pid not in {None, *killed})
        await _until_served(program, said)
        assert set(said) <= {b"served", b"cut"}, (seed, said)
        assert sandbox.is_running
        assert (await sandbox.run("echo well")).stdout == "well\n"
    assert set(web.paths) == {"/hello"} and len(killed) == 20
    assert not [pid for pid in killed if Path(f"/proc/{pid}").exists()]


async def _until_served(program: Process, said: list[bytes]) -> None:
    async with asyncio.timeout(120):
        while True:
            lines = (await program.stdout.read()).split()
            said += lines
            if b"served" in lines:
                return


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not is_so():
            await asyncio.sleep(0.05)


async def test_a_fork_of_memory_has_its_connections_cut_and_a_gateway_of_its_own(
    echo: Any, tls: Any, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOISTER_CA_FILE", str(certificate))
    text = f"""
import os, socket
s = socket.create_connection(("other.test", {echo.port}), 60)
print(s.recv(100), flush=True)
try: said = s.recv(100)
except ConnectionResetError: said = "reset"
open("/workspace/said.new", "w").write(str(said))
os.rename("/workspace/said.new", "/workspace/said")
"""
    rule = EgressRule(
        name="read", host=f"web.test:{tls.port}", methods=["GET"], paths=["/hello"], effect="allow"
    )
    egress = Egress((f"other.test:{echo.port}",), NAMES, (rule,))
    fetch = f"fetch('https://web.test:{tls.port}/hello')"
    trusted = ["sha256sum", "/run/cloister/ca-certificates.crt"]
    async with machine(egress=egress, storage="disk") as sandbox:
        program = await sandbox.start(["python3", "-c", text])
        assert await program.stdout.read() == b"b'220 welcome\\n'\n"
        taken = await sandbox.snapshot("mid", memory=True)
        assert await said_in(sandbox) == b"reset"
        assert await asked(sandbox, fetch) == ["got b'hello from outside\\n'"]
        own = (await sandbox.run(trusted)).stdout
        async with Sandbox.fork(taken.id, grants=True) as (child,):
            assert await said_in(child) == b"reset"
            assert await asked(child, fetch) == ["got b'hello from outside\\n'"]
            # Its gateway has another authority, and that is what it is shown.
            assert (await child.run(trusted)).stdout != own
        with pytest.raises(RequestError, match="grants=True"):
            async with Sandbox.fork(taken.id):
                pass
    assert tls.paths == ["/hello"] * 2


async def said_in(sandbox: Sandbox) -> bytes:
    async with asyncio.timeout(60):
        while not (await sandbox.run(["test", "-e", "/workspace/said"])).ok:
            assert sandbox.is_running
    return await sandbox.files.read("/workspace/said")
