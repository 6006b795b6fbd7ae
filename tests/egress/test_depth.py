"""Programs whose requests are read: what the rules allow arrives, what they do not does not."""

from __future__ import annotations

import asyncio
import http.server
import os
import shutil
import signal
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cloister import Sandbox
from cloister.model.approvals import Answer, Question
from cloister.node import Node
from cloister.policy import Egress

LOOPBACK = "127.0.0.1"
NAMES = ("web.test", "other.test", "git.test")

Deep = Callable[..., Sandbox]


@pytest.fixture
async def deep(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Deep:
    """Make a sandbox with rules on requests, whose servers' certificates are trusted."""
    monkeypatch.setenv("CLOISTER_CA_FILE", str(certificate))
    Node.current().gateway.answers = {name: [LOOPBACK] for name in NAMES}

    def make(*rules: dict[str, Any], allow: tuple[str, ...] = (), **more: Any) -> Sandbox:
        hosts = [str(rule["host"]) for rule in rules] + list(allow)
        own = list(dict.fromkeys(host.partition(":")[0] for host in hosts))
        return Sandbox(**{"egress": Egress(allow, own, rules), **more})

    return make


def reading(port: int, host: str = "web.test") -> dict[str, Any]:
    return {
        "name": "read",
        "host": f"{host}:{port}",
        "methods": ["GET"],
        "paths": ["/hello", "/large", "/simple/**"],
        "effect": "allow",
    }


async def test_programs_trust_what_reads_their_requests(tls: Any, deep: Deep, inside: Any) -> None:
    url = f"https://web.test:{tls.port}"
    async with deep(reading(tls.port)) as sandbox:
        got = await sandbox.run(f"curl -sS -m 10 {url}/hello")
        bare = await sandbox.run(f"env -i /usr/bin/curl -sS -m 10 {url}/hello?bare")
        text = f"import urllib.request as u; print(u.urlopen('{url}/hello?python').read())"
        python = await sandbox.run(inside(text))
        posted = await sandbox.run(f"curl -sS -m 10 -d a=b -w '%{{http_code}}' {url}/hello")
        other = await sandbox.run(f"curl -sS -m 10 -w '%{{http_code}}' {url}/other")
        traffic = await sandbox.traffic()
    assert got.stdout == bare.stdout == "hello from outside\n", got.stderr + bare.stderr
    assert "hello from outside" in python.stdout, python.stderr
    assert posted.stdout.endswith("403") and "cloister: denied" in posted.stdout
    assert "rule: " in posted.stdout and "`cloister explain`" in posted.stdout
    assert other.stdout.endswith("403")
    assert tls.paths == ["/hello", "/hello?bare", "/hello?python"]
    assert [(each.method, each.path, each.status) for each in traffic.requests] == [
        ("GET", "/hello", 200),
        ("GET", "/hello?bare", 200),
        ("GET", "/hello?python", 200),
    ]
    denied = [(each.method, each.path) for each in traffic.denied if each.kind == "request"]
    assert denied == [("POST", "/hello"), ("GET", "/other")]


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
async def test_node_trusts_it_too(tls: Any, deep: Deep) -> None:
    text = (
        f"require('https').get('https://web.test:{tls.port}/hello', "
        "answer => answer.on('data', data => process.stdout.write(data)))"
    )
    async with deep(reading(tls.port)) as sandbox:
        result = await sandbox.run(["node", "-e", text])
    assert result.stdout == "hello from outside\n", result.stderr
    assert tls.paths == ["/hello"]


async def test_hosts_without_such_rules_are_not_opened(
    tls: Any, deep: Deep, certificate: Path
) -> None:
    url = f"https://other.test:{tls.port}/hello"
    async with deep(reading(tls.port), allow=(f"other.test:{tls.port}",)) as sandbox:
        await sandbox.files.write("/tmp/own.pem", certificate.read_bytes())
        # Only the server's own certificate will do for this one.
        result = await sandbox.run(f"curl -sS -m 10 --cacert /tmp/own.pem {url}")
        opened = await sandbox.run(
            f"curl -sS -m 10 --cacert /tmp/own.pem https://web.test:{tls.port}/hello"
        )
    assert result.stdout == "hello from outside\n", result.stderr
    assert opened.exit_code == 60
    assert tls.asked == [(f"other.test:{tls.port}", "/hello")]


@dataclass
class GitServer:
    port: int
    bare: Path
    asked: list[tuple[str, str]] = field(default_factory=list)

    def head(self) -> str:
        shown = subprocess.run(
            ["git", "rev-parse", "--verify", "-q", "refs/heads/main"],
            cwd=self.bare,
            capture_output=True,
            text=True,
        )
        return shown.stdout.strip()


@pytest.fixture
def git_server(tmp_path: Path, certificate: Path) -> Iterator[GitServer]:
    """A repository that may be pushed to over HTTPS."""
    bare = tmp_path / "r.git"
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(bare)], check=True)
    subprocess.run(["git", "config", "http.receivepack", "true"], cwd=bare, check=True)

    class Backend(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def serve(self) -> None:
            end.asked.append((self.command, self.path))
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            ran = subprocess.run(
                ["git", "http-backend"],
                input=body,
                capture_output=True,
                env={
                    "PATH": os.environ["PATH"],
                    "GIT_PROJECT_ROOT": str(tmp_path),
                    "GIT_HTTP_EXPORT_ALL": "1",
                    "REQUEST_METHOD": self.command,
                    "PATH_INFO": path,
                    "QUERY_STRING": query,
                    "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                    "CONTENT_LENGTH": str(len(body)),
                    "REMOTE_ADDR": LOOPBACK,
                },
            )
            head, _, content = ran.stdout.partition(b"\r\n\r\n")
            lines = [line.split(": ", 1) for line in head.decode().split("\r\n")]
            status = next((int(v.split()[0]) for k, v in lines if k == "Status"), 200)
            self.send_response(status)
            for key, value in lines:
                if key != "Status":
                    self.send_header(key, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = serve

        def log_message(self, format: str, *arguments: Any) -> None:
            return

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            return

    server = Server((LOOPBACK, 0), Backend)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    end = GitServer(server.server_port, bare)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield end
    server.shutdown()
    thread.join()
    server.server_close()


_PUSH = """
set -e
cd "$(mktemp -d)"
git init -q -b main
git -c user.name=t -c user.email=t@example.org commit -q --allow-empty -m one
git push -q {url} main
"""


@pytest.mark.parametrize("effect", ["deny", "ask", "allow"])
async def test_a_push_is_a_request_that_a_rule_decides(
    effect: str, git_server: GitServer, deep: Deep
) -> None:
    url = f"https://git.test:{git_server.port}/r.git"
    push = {
        "name": "pushing",
        "host": f"git.test:{git_server.port}",
        "methods": ["POST"],
        "paths": ["/**/git-receive-pack"],
        "effect": effect,
    }
    rest = {
        "name": "the rest",
        "host": f"git.test:{git_server.port}",
        "methods": ["GET", "POST"],
        "effect": "allow",
    }
    asked: list[str] = []

    def approve(question: Question) -> bool:
        asked.append(f"{question.method} {question.path}")
        return False

    async with deep(push, rest, approve=approve) as sandbox:
        pushed = await sandbox.run(_PUSH.format(url=url), timeout=60)
        read = await sandbox.run(f"git ls-remote {url}")
        traffic = await sandbox.traffic()
    assert read.ok, read.stderr
    assert asked == (["POST /r.git/git-receive-pack"] if effect == "ask" else [])
    assert bool(git_server.head()) is (effect == "allow"), pushed.stderr
    assert pushed.ok is (effect == "allow")
    posts = [path for method, path in git_server.asked if method == "POST"]
    assert bool(posts) is (effect == "allow")
    if effect != "allow":
        assert [each.rule for each in traffic.denied if each.kind == "request"] == ["pushing"]


async def test_pip_installs_through_it(
    tls: Any, documents: Path, deep: Deep, tmp_path: Path
) -> None:
    built = tmp_path / "simple" / "tiny"
    built.mkdir(parents=True)
    wheel = _wheel(tmp_path)
    place = documents / "simple" / "tiny-of-tests"
    place.mkdir(parents=True)
    shutil.copy(wheel, place / wheel.name)
    (place / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    url = f"https://web.test:{tls.port}/simple/"
    async with deep(reading(tls.port)) as sandbox:
        result = await sandbox.run(
            f"/usr/bin/python3 -m pip download -q --no-deps -d /tmp/got -i {url} tiny-of-tests "
            "&& cd /tmp/got && echo *",
            timeout=60,
        )
    if "No module named pip" in result.stderr:
        pytest.skip("pip is not installed")
    assert result.stdout.strip() == wheel.name, result.stderr
    assert any(path.endswith(".whl") for path in tls.paths)


def _wheel(place: Path) -> Path:
    import zipfile

    path = place / "tiny_of_tests-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        info = "tiny_of_tests-1.0.dist-info"
        archive.writestr("tiny_of_tests.py", "")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-of-tests\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


async def test_a_killed_gateway_cuts_what_was_open_and_the_next_is_trusted_too(
    tls: Any, deep: Deep
) -> None:
    url = f"https://web.test:{tls.port}"
    gateway = Node.current().depth_gateway
    async with deep(reading(tls.port)) as sandbox:
        first = gateway.pid
        assert first is not None
        slow = await sandbox.start(
            f"curl -sS -m 30 --limit-rate 100k -o /tmp/large {url}/large; echo $?"
        )
        async with asyncio.timeout(20):
            while not tls.asked:
                await asyncio.sleep(0.02)
        os.kill(first, signal.SIGKILL)
        cut = b"".join([part async for part in slow.stdout])
        await slow.wait()
        again = await sandbox.run(f"curl -sS -m 20 --retry 5 --retry-all-errors {url}/hello")
        denied = await sandbox.run(f"curl -sS -m 20 -w '%{{http_code}}' {url}/other")
        second = gateway.pid
        traffic = await sandbox.traffic()
    assert cut.strip() != b"0"
    assert second not in (None, first)
    assert again.stdout == "hello from outside\n", again.stderr
    assert denied.stdout.endswith("403")
    broken = [each for each in traffic.requests if each.path == "/large"]
    assert broken[0].error == "cut off in the middle"


async def test_the_authority_is_of_one_sandbox_and_its_key_is_nowhere_inside(
    tls: Any, deep: Deep
) -> None:
    async with deep(reading(tls.port)) as one, deep(reading(tls.port)) as two:
        bundles = [
            (await each.run("cat /run/cloister/ca-certificates.crt")).stdout for each in (one, two)
        ]
        found = await one.run(
            "grep -rIl 'PRIVATE KEY' /run /etc /tmp /home /workspace 2>/dev/null", user="user"
        )
        changed = await one.run("echo x >> /run/cloister/ca-certificates.crt")
    own = [bundle.strip().split("-----BEGIN CERTIFICATE-----")[-1] for bundle in bundles]
    assert own[0] != own[1]
    assert found.stdout == ""
    assert not changed.ok


async def test_without_such_rules_nothing_of_it_is_there(tls: Any, deep: Deep) -> None:
    async with deep(allow=(f"web.test:{tls.port}",)) as sandbox:
        result = await sandbox.run("cat /run/cloister; env")
    assert "SSL_CERT_FILE" not in result.stdout
    assert "No such file" in result.stderr
    assert Node.current().depth_gateway.pid is None


async def test_a_request_that_waits_is_sent_as_it_was_when_it_was_allowed(
    tls: Any, deep: Deep
) -> None:
    asked: list[Question] = []

    async def approve(question: Question) -> Answer:
        asked.append(question)
        allowed = question.path == "/yes"
        return Answer("once", who="me") if allowed else Answer("deny", who="me", reason="no")

    rule = {
        "name": "writing",
        "host": f"web.test:{tls.port}",
        "methods": ["POST"],
        "effect": "ask",
    }
    url = f"https://web.test:{tls.port}"
    async with deep(rule, approve=approve) as sandbox:
        yes = await sandbox.run(f"curl -sS -m 20 -d some=body -w '%{{http_code}}' {url}/yes")
        no = await sandbox.run(f"curl -sS -m 20 -d some=body -w '%{{http_code}}' {url}/no")
        long = await sandbox.run(
            f"head -c 2000000 /dev/zero | curl -sS -m 20 --data-binary @- -w '%{{http_code}}' "
            f"{url}/yes"
        )
    assert yes.stdout == "some=body200", yes.stderr
    assert no.stdout.endswith("403")
    assert long.stdout.endswith("403") or long.exit_code == 55
    assert [(each.method, each.path) for each in asked] == [("POST", "/yes"), ("POST", "/no")]
    assert tls.paths == ["/yes"]


async def test_requests_and_bytes_that_are_read_count_for_the_budget(
    tls: Any, deep: Deep, certificate: Path
) -> None:
    url = f"https://web.test:{tls.port}"
    rules = [reading(tls.port)]
    few = Egress((), ["web.test"], rules, {"requests": 2})
    small = Egress((), ["web.test"], rules, {"bytes_in": "1MiB"})
    async with deep(*rules, egress=few) as sandbox:
        codes = [
            (await sandbox.run(f"curl -sS -m 10 -o /dev/null -w '%{{http_code}}' {url}/hello"))
            for _ in range(3)
        ]
    assert [each.stdout for each in codes] == ["200", "200", "403"]
    async with deep(*rules, egress=small) as sandbox:
        hello = await sandbox.run(f"curl -sS -m 10 {url}/hello")
        large = await sandbox.run(f"curl -sS -m 10 -o /tmp/large {url}/large; wc -c /tmp/large")
    assert hello.stdout == "hello from outside\n"
    assert int(large.stdout.split()[0]) < 1024 * 1024
    assert tls.paths == ["/hello", "/hello", "/hello", "/large"]
