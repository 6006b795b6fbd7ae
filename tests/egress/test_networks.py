"""Networks of addresses, and what may be reached that changes while a sandbox runs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloister import Sandbox
from cloister.errors import RequestError
from cloister.node import Node
from cloister.policy import Egress

from .conftest import LOOPBACK, Echo, FarEnd, Make
from .far_away import ADDRESS, OTHER_ADDRESS, far_away

Inside = Callable[[str], list[str]]

ASK = """
import socket, sys
for place in sys.argv[1:]:
    host, port = place.split("/")
    try:
        sock = socket.create_connection((host, int(port)), 20)
        sock.sendall(b"GET / HTTP/1.1\\r\\nHost: " + host.encode() + b"\\r\\n\\r\\n")
        print(sock.recv(100)[9:12].decode() or "reset")
    except OSError as error:
        print("reset" if isinstance(error, ConnectionError) else type(error).__name__)
"""


@pytest.fixture(scope="module")
def away() -> Iterator[str]:
    with far_away() as address:
        yield address


async def ask(sandbox: Sandbox, *places: str) -> list[str]:
    """Return what each "host/port" answers from inside: a status, or that it is not reached."""
    done = await sandbox.run(["/usr/bin/python3", "-c", ASK, *places])
    assert done.exit_code == 0, done.stderr
    return done.stdout.split()


async def test_an_address_of_a_network_is_reached_at_every_port_and_no_other_is(away: str) -> None:
    async with Sandbox(egress=Egress(networks=[f"{away}/32"])) as sandbox:
        asked = f"{away}/80", f"{away}/7000", f"{OTHER_ADDRESS}/80"
        assert await ask(sandbox, *asked) == ["200", "200", "reset"]
        denied = (await sandbox.traffic()).denied
        assert [event.host for event in denied] == [OTHER_ADDRESS]


async def test_where_everything_is_open_names_are_found_and_exceptions_hold(away: str) -> None:
    Node.current().gateway.answers = {"far.test": [away], "other.test": [OTHER_ADDRESS]}
    egress = Egress(networks=["0.0.0.0/0"], without=[OTHER_ADDRESS])
    async with Sandbox(egress=egress) as sandbox:
        asked = "far.test/80", f"{away}/7000", "other.test/7000", f"{OTHER_ADDRESS}/80"
        assert await ask(sandbox, *asked) == ["200", "200", "reset", "reset"]
        assert OTHER_ADDRESS in (await sandbox.traffic()).denied[0].reason


async def test_an_open_network_leads_to_no_private_address(web: FarEnd) -> None:
    Node.current().gateway.answers = {"own.test": [LOOPBACK], "keys.test": ["169.254.169.254"]}
    hosts = ("own.test", "keys.test", "169.254.169.254", "10.0.0.1")
    async with Sandbox(egress=Egress(networks=["0.0.0.0/0"])) as sandbox:
        assert await ask(sandbox, *(f"{host}/{web.port}" for host in hosts)) == ["reset"] * 4
    assert web.connections == 0
    async with Sandbox(egress=Egress([f"own.test:{web.port}"], ["own.test"])) as sandbox:
        assert await ask(sandbox, f"own.test/{web.port}") == ["200"]
    assert web.connections == 1


async def test_names_are_not_looked_up_for_a_small_network() -> None:
    Node.current().gateway.answers = {"far.test": [ADDRESS]}
    async with Sandbox(egress=Egress(networks=[f"{ADDRESS}/32"])) as sandbox:
        assert await ask(sandbox, "far.test/80") == ["gaierror"]


async def test_what_may_be_reached_changes_while_it_runs(
    sandbox_to: Make, web: FarEnd, other_web: FarEnd
) -> None:
    asked = f"web.test/{web.port}", f"other.test/{other_web.port}"
    async with sandbox_to(f"web.test:{web.port}") as sandbox:
        assert await ask(sandbox, *asked) == ["200", "gaierror"]
        change = Egress([f"other.test:{other_web.port}"], ["other.test"])
        await sandbox.update_egress(change)
        assert await ask(sandbox, *asked) == ["gaierror", "200"]
        assert sandbox.policy.egress == change
        await sandbox.update_egress([])
        assert await ask(sandbox, *asked) == ["gaierror", "gaierror"]
    assert (web.connections, other_web.connections) == (1, 1)


async def test_a_change_cuts_what_is_open(sandbox_to: Make, echo: Echo, inside: Inside) -> None:
    text = f"""
import socket
sock = socket.create_connection(("web.test", {echo.port}))
print(sock.recv(100).decode(), flush=True)
try:
    print("more" if sock.recv(100) else "closed")
except ConnectionError:
    print("cut")
"""
    async with sandbox_to(f"web.test:{echo.port}") as sandbox:
        process = await sandbox.start(inside(text))
        assert await anext(aiter(process.stdout)) == b"220 welcome\n\n"
        await sandbox.update_egress([])
        said = b"".join([part async for part in process.stdout])
        assert said.strip() in (b"cut", b"closed")


async def test_a_change_outlives_the_gateway(sandbox_to: Make, web: FarEnd) -> None:
    async with sandbox_to(f"web.test:{web.port}") as sandbox:
        await sandbox.update_egress([])
        gateway = Node.current().gateway
        pid = gateway.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert await ask(sandbox, f"web.test/{web.port}") == ["gaierror"]
    assert web.connections == 0


async def test_a_change_is_in_the_ledger(sandbox_to: Make, tmp_path: Path) -> None:
    async with sandbox_to("web.test") as sandbox:
        await sandbox.update_egress(Egress(["other.test"], networks=["203.0.113.0/24"]))
        digest = sandbox.policy.digest()
    (entry,) = [
        json.loads(line)["entry"]
        for path in (tmp_path / "state").rglob("*.jsonl")
        for line in path.read_text().splitlines()
        if '"policy.egress"' in line
    ]
    assert entry["payload"] == {"policy": digest, "reaches": ["other.test", "203.0.113.0/24"]}


async def test_what_has_no_way_out_is_given_none() -> None:
    async with Sandbox() as sandbox:
        with pytest.raises(RequestError, match="without a way out"):
            await sandbox.update_egress(["web.test"])
    async with Sandbox(egress=[]) as sandbox:
        await sandbox.update_egress(["web.test"])
        rule = {"name": "read", "host": "web.test", "methods": ["GET"], "effect": "allow"}
        with pytest.raises(RequestError, match="start of the sandbox"):
            await sandbox.update_egress(Egress(rules=[rule]))


async def test_what_was_taken_from_a_kept_sandbox_is_not_back_when_it_is_opened_again(
    sandbox_to: Make, web: FarEnd
) -> None:
    allowed = Egress([f"web.test:{web.port}"], ["web.test"])
    async with Sandbox(egress=allowed, keep="taken") as sandbox:
        assert await ask(sandbox, f"web.test/{web.port}") == ["200"]
        await sandbox.update_egress([])
    async with Sandbox(keep="taken") as sandbox:
        assert await ask(sandbox, f"web.test/{web.port}") == ["gaierror"]
        await sandbox.update_egress(allowed)
    async with Sandbox(keep="taken") as sandbox:
        assert await ask(sandbox, f"web.test/{web.port}") == ["200"]
    assert web.connections == 2


async def test_the_last_of_several_changes_at_once_is_in_force(
    sandbox_to: Make, web: FarEnd
) -> None:
    allowed = Egress([f"web.test:{web.port}"], ["web.test"])
    async with Sandbox(egress=[]) as sandbox:
        await asyncio.gather(*(sandbox.update_egress(each) for each in (allowed, [], allowed, [])))
        assert sandbox.policy.egress == Egress([])
        assert await ask(sandbox, f"web.test/{web.port}") == ["gaierror"]
        await asyncio.gather(*(sandbox.update_egress(each) for each in ([], allowed)))
        assert await ask(sandbox, f"web.test/{web.port}") == ["200"]
    assert web.connections == 1
