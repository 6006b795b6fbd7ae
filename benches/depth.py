"""What reading requests costs: small ones, one after the other, by one process."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from benches.measure import NotMeasurable, Turn, take_turns
from benches.row import Bar, Row
from benches.setting import Setting
from cloister import Sandbox
from cloister.node import Node
from cloister.policy import Egress

NAME = "depth.test"
PYTHON = "/usr/bin/python3"
REQUESTS_BAR = 1000.0
CONNECTIONS = 4

# Answers every request with two bytes.
WEB = r"""
import socket, ssl, sys, threading
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1])
answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"
def serve(sock):
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with context.wrap_socket(sock, server_side=True) as tls:
        while data := tls.recv(65536):
            tls.sendall(answer * data.count(b"\r\n\r\n"))
listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""

# Prints the seconds that so many requests took, one after the other on each of some connections.
ASKER = r"""
import os, socket, ssl, sys, threading, time
name, port, count, many = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
context = ssl.create_default_context()
ask = f"GET /open/item HTTP/1.1\r\nHost: {name}:{port}\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"
def run():
    with socket.create_connection((name, port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with context.wrap_socket(sock, server_hostname=name) as tls:
            for _ in range(count // many):
                tls.sendall(ask.encode())
                seen = b""
                while not seen.endswith(b"\r\n\r\nok"):
                    data = tls.recv(65536)
                    if not data:
                        os._exit(1)
                    seen += data
                if b" 200 " not in seen:
                    os._exit(2)
began = time.perf_counter()
threads = [threading.Thread(target=run) for _ in range(many)]
for each in threads: each.start()
for each in threads: each.join()
print(time.perf_counter() - began)
"""


async def measure(setting: Setting) -> list[Row]:
    with tempfile.TemporaryDirectory() as place:
        both = Path(place) / "both.pem"
        trusted = Path(place) / "trusted.pem"
        issue(both, trusted)
        before = os.environ.get("CLOISTER_CA_FILE")
        os.environ["CLOISTER_CA_FILE"] = str(trusted)
        try:
            async with server(both) as port:
                return [await requests(setting, port)]
        finally:
            del os.environ["CLOISTER_CA_FILE"]
            if before is not None:
                os.environ["CLOISTER_CA_FILE"] = before


async def requests(setting: Setting, port: int) -> Row:
    Node.current().gateway.answers = {NAME: ["127.0.0.1"]}
    count = 400 if setting.quick else 2000
    rule = {
        "name": "read",
        "host": f"{NAME}:{port}",
        "methods": ["GET"],
        "paths": ["/open/**"],
        "effect": "allow",
    }
    egress = Egress((), [NAME], [rule])
    elapsed: list[float] = []
    async with Sandbox(egress=egress, ledger="off") as living:

        async def ours() -> float:
            pid = Node.current().depth_gateway.pid
            if pid is None:
                raise NotMeasurable("no gateway reads requests")
            before_s = cpu_s(pid)
            result = await living.run(
                [PYTHON, "-c", ASKER, NAME, str(port), str(count), str(CONNECTIONS)]
            )
            if not result.ok:
                raise NotMeasurable(f"inside: {result.describe()}: {result.stderr.strip()}")
            elapsed.append(count / float(result.stdout))
            return count / (cpu_s(pid) - before_s)

        turns: dict[str, Turn] = {"ours": ours}
        contest = await take_turns(turns, setting.rounds(10))
    return Row(
        name="small intercepted requests, per second of one processor",
        unit="requests/s",
        ours=contest.summaries["ours"].median,
        kind=Bar.OURS_AT_LEAST,
        bar=REQUESTS_BAR,
        spread=contest.summaries,
        facts={"per second of the clock, at best": round(max(elapsed))},
    )


def cpu_s(pid: int) -> float:
    """Return the seconds of a processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.asynccontextmanager
async def server(both: Path) -> AsyncIterator[int]:
    """A server of its own process: what it costs is not ours."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WEB, str(both), stdout=asyncio.subprocess.PIPE
    )
    try:
        if process.stdout is None:
            raise NotMeasurable("the server has no pipe")
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


def issue(both: Path, trusted: Path) -> None:
    """Write a certificate that signs itself, with its key and without."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    trusted.write_bytes(made.public_bytes(pem))
    both.write_bytes(made.public_bytes(pem) + private)
