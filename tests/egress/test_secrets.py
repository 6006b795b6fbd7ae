"""A secret is used by programs that never have it, and is found nowhere but with its host."""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import os
import secrets
import signal
import ssl
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cloister import Sandbox
from cloister.errors import Denied, Exhausted, NotFound
from cloister.ledger import Requested, Responded, SecretBlocked, SecretsRenewed, SecretUsed
from cloister.ledger.reading import make_receipt, read_entries
from cloister.model import Limits
from cloister.node import Node
from cloister.policy import Effect, Egress
from cloister.server.records import Records
from cloister.server.tenancy import TenantName
from cloister.server.vault import Vault
from cloister.store.place import state_directory

LOOPBACK = "127.0.0.1"


@dataclass
class Echo:
    """A server that says back all it was told, which is the worst that one may do."""

    port: int
    authorizations: list[str | None] = field(default_factory=list)


@pytest.fixture
def echoing(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Echo]:
    monkeypatch.setenv("CLOISTER_CA_FILE", str(certificate))

    class Answering(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            told = self.headers["Authorization"]
            end.authorizations.append(told)
            value = (told or "").rpartition(" ")[2].encode()
            body = b" ".join((str(self.headers).encode(), value.hex().encode(), value))
            body += b" " + base64.b64encode(value)
            self.send_response(200)
            self.send_header("X-Told", str(told))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer((LOOPBACK, 0), Answering)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    end = Echo(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield end
    server.shutdown()
    thread.join()
    server.server_close()


def egress_of(port: int) -> Egress:
    names = ("web.test", "other.test")
    Node.current().gateway.answers = {name: [LOOPBACK] for name in names}
    return Egress([f"{name}:{port}" for name in names], names)


def table_of(port: int, **source: Any) -> dict[str, Any]:
    source = source or {"from": "env:CANARY"}
    return {"TOKEN": {**source, "hosts": [f"web.test:{port}"], "header": "Authorization"}}


def found_in(root: Path, canary: bytes) -> list[str]:
    """Return the files below a directory that have the canary in them, in any of its forms."""
    forms = (canary, base64.b64encode(canary).rstrip(b"="), canary.hex().encode())
    found = []
    for path in root.rglob("*"):
        try:
            data = path.read_bytes() if path.is_file() else b""
        except OSError:
            continue
        if any(form in data for form in forms):
            found.append(str(path))
    return found


async def test_the_value_is_found_nowhere_but_at_its_host(
    echoing: Echo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    canary = f"ghp_{secrets.token_hex(18)}"
    monkeypatch.setenv("CANARY", canary)
    port = echoing.port
    state = Path(os.environ["CLOISTER_STATE"])
    ask = f'curl -sS -i -m 10 -H "Authorization: Bearer $TOKEN" https://web.test:{port}/'
    async with Sandbox(egress=egress_of(port), secrets=table_of(port)) as sandbox:
        used = await sandbox.run(ask)
        stolen = await sandbox.run(ask.replace("web.test", "other.test"))
        basic = await sandbox.run(f'curl -sS -i -m 10 -u "me:$TOKEN" https://web.test:{port}/')
        inside = await sandbox.run(
            "env; cat /proc/*/environ /proc/*/cmdline; grep -r ghp_ /run /tmp"
        )
        environs = _environs_of_children(canary.encode())
        traffic = await sandbox.traffic()
    printed = "".join(capfd.readouterr())
    shown = "".join(each.stdout + each.stderr for each in (used, stolen, basic, inside))
    basic_value = base64.b64encode(f"me:{canary}".encode()).decode()
    assert echoing.authorizations[0] == f"Bearer {canary}"
    assert echoing.authorizations[2] == f"Basic {basic_value}"
    assert " 200" in used.stdout.splitlines()[0]
    # The other host is not opened, so what reached it is the placeholder, which is worth nothing.
    assert canary not in str(echoing.authorizations[1])
    assert len(echoing.authorizations) == 3
    for form in (canary, canary.encode().hex(), base64.b64encode(canary.encode()).decode()[:-2]):
        assert form not in shown
    assert basic_value not in shown
    assert environs == []
    assert found_in(state, canary.encode()) == []
    assert found_in(Path("/run/cloister"), canary.encode()) == []
    assert canary not in repr(traffic) + repr(sandbox.policy) + printed


async def test_what_a_tenant_stored_reaches_its_host_and_no_other(
    echoing: Echo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "owner.key"
    key.write_text("5a" * 32)
    key.chmod(0o600)
    monkeypatch.setenv("CLOISTER_MEMORY_KEY", str(key))
    canary, port = f"ghp_{secrets.token_hex(18)}", echoing.port
    records = Records.open(f"sqlite:///{tmp_path}/records/server.db")
    try:
        vault, acme = Vault(records), TenantName("acme")
        await vault.put(acme, "STORED", canary, [f"web.test:{port}"])
        table = table_of(port, **{"from": "tenant:STORED"})
        sandbox = Sandbox(egress=egress_of(port), secrets=table)
        sandbox.belongs_to(acme, vault.reader(acme))
        async with sandbox:
            ask = f'curl -sS -m 10 -H "Authorization: Bearer $TOKEN" https://web.test:{port}/'
            said = await sandbox.run(f"{ask}; env")
            await vault.put(acme, "STORED", canary[::-1], [f"web.test:{port}"])
            await sandbox.renew_secrets()
            again = await sandbox.run(ask)
        sent = [canary, canary[::-1]]
        assert echoing.authorizations == [f"Bearer {each}" for each in sent]
        assert not any(each in said.stdout + again.stdout for each in sent)

        table["TOKEN"]["hosts"] = [f"other.test:{port}"]
        other = Sandbox(egress=egress_of(port), secrets=table)
        other.belongs_to(acme, vault.reader(acme))
        with pytest.raises(Denied, match=r"is not for other\.test"):
            await other.open()
        assert len(echoing.authorizations) == 2
    finally:
        records.close()
    assert found_in(tmp_path, canary.encode()) == []


def _environs_of_children(canary: bytes) -> list[str]:
    """Return the processes below this one that have it in their arguments or environment."""
    found = []
    ours = {os.getpid()}
    for entry in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent not in ours:
                continue
            ours.add(int(entry.name))
            data = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if canary in data:
            found.append(entry.name)
    return found


async def test_each_sandbox_has_a_placeholder_of_its_own(
    echoing: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", "ghp_0123456789abcdef0123")
    port = echoing.port
    policy = {"egress": egress_of(port), "secrets": table_of(port)}
    async with Sandbox(**policy) as one, Sandbox(**policy) as two:
        first, second = [(await each.run("echo $TOKEN")).stdout.strip() for each in (one, two)]
        ask = 'curl -sS -m 10 -o /dev/null -w "%{http_code}"'
        url = f"https://web.test:{port}/"
        crossed = await two.run(f'{ask} -H "Authorization: {first}" {url}')
        own = await two.run(f'{ask} -H "Authorization: {second}" {url}')
    assert first != second
    assert first.startswith("ghp_") and len(first) == 24
    assert (crossed.stdout, own.stdout) == ("200", "200")
    # Of another sandbox it is a text like any other.
    assert echoing.authorizations == [first, "ghp_0123456789abcdef0123"]


async def test_uses_and_misuses_are_in_the_ledger(
    echoing: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = "ghp_0123456789abcdef0123"
    monkeypatch.setenv("CANARY", canary)
    port = echoing.port
    async with Sandbox(egress=egress_of(port), secrets=table_of(port)) as sandbox:
        url = f"https://web.test:{port}/"
        await sandbox.run(f'curl -sS -m 10 -H "Authorization: $TOKEN" {url}')
        await sandbox.run(f"curl -sS -m 10 {url}?key=$TOKEN")
        await sandbox.traffic()
        id = sandbox.id
    state = state_directory()
    entries = list(read_entries(state, id))
    payloads = [entry.payload for entry in entries]
    (used,) = [each for each in payloads if isinstance(each, SecretUsed)]
    (blocked,) = [each for each in payloads if isinstance(each, SecretBlocked)]
    asked = [entry for entry in entries if isinstance(entry.payload, Requested)]
    (answered,) = [entry for entry in entries if isinstance(entry.payload, Responded)]
    assert (str(used.name), str(used.host)) == ("TOKEN", "web.test")
    assert str(used.place) == "header authorization"
    assert used.request == asked[0].sequence == answered.span
    assert str(blocked.place) == "path"
    assert [each.payload.effect for each in asked] == [Effect.ALLOW, Effect.DENY]
    assert answered.payload.status == 200
    receipt = make_receipt(state, id)
    assert [str(each.name) for each in receipt.secrets] == ["TOKEN"]
    assert canary not in str(receipt) + str(entries)


async def test_a_fork_has_no_secrets_unless_they_are_granted(
    echoing: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", "ghp_0123456789abcdef0123")
    port = echoing.port
    free = Limits(disk="unlimited")
    async with Sandbox(
        egress=egress_of(port), secrets=table_of(port), storage="disk", limits=free
    ) as sandbox:
        taken = await sandbox.snapshot("s")
        async with (
            Sandbox.fork(taken) as (bare,),
            Sandbox.fork(taken, grants=True) as (granted,),
            Sandbox.fork(taken, grants=True, secrets=True) as (full,),
        ):
            seen = [
                (await each.run("echo -n $TOKEN")).stdout for each in (sandbox, bare, granted, full)
            ]
    assert seen[1] == seen[2] == ""
    # Neither the disk, nor the snapshot, nor the policy that is kept with it has the value.
    assert found_in(Path(os.environ["CLOISTER_STATE"]), b"ghp_0123456789abcdef0123") == []
    assert len(seen[0]) == len(seen[3]) == 24
    assert seen[0] != seen[3]


async def test_renewed_secrets_replace_the_old_and_those_without_a_source_are_withdrawn(
    echoing: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {
        "TOKEN": {
            "from": "env:A_SOURCE",
            "hosts": [f"web.test:{echoing.port}"],
            "header": "Authorization",
        }
    }
    use = f'curl -sS -m 20 -H "Authorization: $TOKEN" https://web.test:{echoing.port}/'
    monkeypatch.setenv("A_SOURCE", "tok_the-first-value-00001")
    async with Sandbox(egress=egress_of(echoing.port), secrets=table) as sandbox:
        first = await sandbox.run(use)
        monkeypatch.setenv("A_SOURCE", "tok_the-other-value-00002")
        await sandbox.renew_secrets()
        second = await sandbox.run(use)
        monkeypatch.delenv("A_SOURCE")
        with pytest.raises(NotFound, match="A_SOURCE"):
            await sandbox.renew_secrets()
        third = await sandbox.run(use)
    written = [each.payload for each in read_entries(state_directory(), sandbox.id)]
    renewals = [each for each in written if isinstance(each, SecretsRenewed)]
    assert renewals == [SecretsRenewed(("TOKEN",), ()), SecretsRenewed((), ("TOKEN",))]
    sent = ["tok_the-first-value-00001", "tok_the-other-value-00002"]
    assert first.ok and second.ok
    assert echoing.authorizations == sent
    assert not any(each in first.stdout + second.stdout for each in sent)
    assert "withdrawn" in third.stdout and "rule: secrets.TOKEN" in third.stdout


async def test_a_gateway_that_hangs_does_not_use_an_old_value_after_it_was_renewed(
    echoing: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"from": "env:A_SOURCE", "hosts": [f"web.test:{echoing.port}"]}
    table = {"TOKEN": {**source, "header": "Authorization"}}
    use = f'curl -sS -m 20 -H "Authorization: $TOKEN" https://web.test:{echoing.port}/'
    monkeypatch.setattr("cloister.node.gateway._CHANGE_S", 2.0)
    monkeypatch.setenv("A_SOURCE", "tok_the-first-value-00001")
    async with Sandbox(egress=egress_of(echoing.port), secrets=table) as sandbox:
        assert (await sandbox.run(use)).ok
        hung = Node.current().depth_gateway.pid
        assert hung is not None
        os.kill(hung, signal.SIGSTOP)
        monkeypatch.setenv("A_SOURCE", "tok_the-other-value-00002")
        await sandbox.renew_secrets()
        # Whoever still has the old one is not there any more, or has been told.
        assert Node.current().depth_gateway.pid != hung
        await Node.current().depth_gateway.wait_ready()
        assert (await sandbox.run(use)).ok
    assert echoing.authorizations == ["tok_the-first-value-00001", "tok_the-other-value-00002"]


async def test_a_renewal_that_cannot_be_recorded_leaves_no_value_in_use(
    echoing: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"from": "env:A_SOURCE", "hosts": [f"web.test:{echoing.port}"]}
    table = {"TOKEN": {**source, "header": "Authorization"}}
    use = f'curl -sS -m 20 -H "Authorization: $TOKEN" https://web.test:{echoing.port}/'

    async def full(*_: object) -> None:
        raise Exhausted("the ledger's disk is full", limit="disk")

    monkeypatch.setenv("A_SOURCE", "tok_the-first-value-00001")
    async with Sandbox(egress=egress_of(echoing.port), secrets=table) as sandbox:
        monkeypatch.setenv("A_SOURCE", "tok_the-other-value-00002")
        with monkeypatch.context() as patch:
            patch.setattr("cloister.sandbox.recording.Recording.secrets_renewed", full)
            with pytest.raises(Exhausted):
                await sandbox.renew_secrets()
        assert "withdrawn" in (await sandbox.run(use)).stdout
        # The twin: once it can be written, what is there now is used.
        await sandbox.renew_secrets()
        assert (await sandbox.run(use)).ok
    assert echoing.authorizations == ["tok_the-other-value-00002"]


_MINT = """
import sys, json, secrets
log = sys.argv[1]
value, handle = "tok_" + secrets.token_hex(12), "h" + secrets.token_hex(4)
print(value); print(handle)
open(log, "a").write(json.dumps(["mint", handle]) + "\\n")
"""
_REVOKE = """
import sys, json
open(sys.argv[1], "a").write(json.dumps(["revoke", sys.stdin.readline().strip()]) + "\\n")
"""


def minting(tmp_path: Path, port: int) -> tuple[dict[str, Any], Path]:
    log = tmp_path / "log"
    return {
        "TOKEN": {
            "mint": [sys.executable, "-c", _MINT, str(log)],
            "revoke": [sys.executable, "-c", _REVOKE, str(log)],
            "hosts": [f"web.test:{port}"],
            "header": "Authorization",
        }
    }, log


async def test_a_credential_is_minted_at_the_start_and_revoked_at_the_end(
    echoing: Echo, tmp_path: Path
) -> None:
    table, log = minting(tmp_path, echoing.port)
    async with Sandbox(egress=egress_of(echoing.port), secrets=table) as sandbox:
        await sandbox.run(
            f'curl -sS -m 10 -H "Authorization: $TOKEN" https://web.test:{echoing.port}/'
        )
        during = [json.loads(line)[0] for line in log.read_text().splitlines()]
    after = [json.loads(line) for line in log.read_text().splitlines()]
    assert during == ["mint"]
    assert [what for what, _ in after] == ["mint", "revoke"]
    assert after[0][1] == after[1][1]
    value = echoing.authorizations[0]
    assert value is not None and value.startswith("tok_")
    assert not list((Path(os.environ["CLOISTER_STATE"]) / "credentials").iterdir())


_OWNER = """
import asyncio, json, sys
from cloister import Sandbox
from cloister.policy import Egress
async def main():
    port, table = int(sys.argv[1]), json.loads(sys.argv[2])
    names = ("web.test", "other.test")
    egress = Egress([f"{name}:{port}" for name in names], names)
    async with Sandbox(egress=egress, secrets=table):
        print("up", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


async def killed(echoing: Echo, table: dict[str, Any], *, with_revoker: bool) -> None:
    """Have something minted by a process that is killed, alone or with the one that revokes."""
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _OWNER, str(echoing.port), json.dumps(table)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert owner.stdout is not None
    assert await owner.stdout.readline() == b"up\n"
    tasks = Path(f"/proc/{owner.pid}/task").glob("*/children")
    children = [pid for each in tasks for pid in each.read_text().split()]
    waits = [pid for pid in children if b"pidfd_open" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(waits) == 1
    if with_revoker:
        os.kill(int(waits[0]), signal.SIGKILL)
    owner.send_signal(signal.SIGKILL)
    await owner.wait()


def told(log: Path) -> list[list[str]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


async def test_what_a_killed_owner_had_minted_is_revoked_at_once(
    echoing: Echo, tmp_path: Path
) -> None:
    table, log = minting(tmp_path, echoing.port)
    await killed(echoing, table, with_revoker=False)
    async with asyncio.timeout(20):
        while len(told(log)) < 2:
            await asyncio.sleep(0.05)
    assert [what for what, _ in told(log)] == ["mint", "revoke"]
    assert told(log)[0][1] == told(log)[1][1]


async def test_what_a_killed_owner_had_minted_is_revoked_by_the_next(
    echoing: Echo, tmp_path: Path
) -> None:
    table, log = minting(tmp_path, echoing.port)
    await killed(echoing, table, with_revoker=True)
    left = json.loads(log.read_text().splitlines()[0])[1]
    async with Sandbox(egress=egress_of(echoing.port), secrets=table):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines[1] == ["revoke", left]
    assert lines[2][0] == "mint"
