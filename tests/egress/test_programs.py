"""Programs that know nothing of proxies reach what is allowed, and nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloister import Sandbox

Make = Callable[..., Sandbox]


async def test_curl_reaches_an_allowed_host_and_no_other(
    web: Any, tls: Any, certificate: Path, sandbox_to: Make
) -> None:
    async with sandbox_to(f"web.test:{web.port}", f"web.test:{tls.port}") as sandbox:
        await sandbox.files.write("/tmp/ca.pem", certificate.read_bytes())
        plain = await sandbox.run(f"curl -sS -m 10 http://web.test:{web.port}/hello?plain")
        safe = await sandbox.run(
            f"curl -sS -m 10 --cacert /tmp/ca.pem https://web.test:{tls.port}/hello?safe"
        )
        other = await sandbox.run(f"curl -sS -m 10 http://other.test:{web.port}/hello?other")
        port = await sandbox.run("curl -sS -m 10 http://web.test:9/hello")
        traffic = await sandbox.traffic()
    assert plain.stdout == safe.stdout == "hello from outside\n", plain.stderr + safe.stderr
    assert other.exit_code == 6
    # A reset, while it connects, just after, or while it sends.
    assert port.exit_code in (7, 55, 56)
    assert web.paths == ["/hello?plain"]
    assert tls.paths == ["/hello?safe"]
    assert [(each.host, each.protocol) for each in traffic.reached] == [
        ("web.test", "http"),
        ("web.test", "tls"),
    ]
    denied = {(each.kind, each.host, each.port) for each in traffic.denied}
    assert denied == {("name", "other.test", None), ("connection", "web.test", 9)}


async def test_python_sends_and_fetches_much(web: Any, sandbox_to: Make, inside: Any) -> None:
    text = f"""
import hashlib, urllib.request
base = "http://web.test:{web.port}"
large = urllib.request.urlopen(base + "/large", timeout=10).read()
print(hashlib.sha256(large).hexdigest(), len(large))
back = urllib.request.urlopen(base + "/post", data=large, timeout=10).read()
print(hashlib.sha256(back).hexdigest(), len(back))
"""
    async with sandbox_to(f"web.test:{web.port}") as sandbox:
        result = (await sandbox.run(inside(text))).check()
        traffic = await sandbox.traffic()
    first, second = result.stdout.splitlines()
    assert first == second
    assert first.endswith(" 8388608")
    fetched, sent = traffic.reached
    assert fetched.bytes_in > 8_388_608 > fetched.bytes_out
    assert sent.bytes_out > 8_388_608


async def test_git_clones(web: Any, documents: Path, sandbox_to: Make, tmp_path: Path) -> None:
    def git(*arguments: str, cwd: Path) -> None:
        own = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *own, *arguments], cwd=cwd, check=True, capture_output=True)

    source = tmp_path / "source"
    source.mkdir()
    git("init", "-q", cwd=source)
    (source / "file").write_text("from the repository\n")
    git("add", "file", cwd=source)
    git("commit", "-q", "-m", "one", cwd=source)
    git("clone", "-q", "--bare", str(source), str(documents / "r.git"), cwd=tmp_path)
    git("update-server-info", cwd=documents / "r.git")
    async with sandbox_to(f"git.test:{web.port}") as sandbox:
        got = await sandbox.run(
            f"git clone -q http://git.test:{web.port}/r.git /tmp/r && cat /tmp/r/file"
        )
        other = await sandbox.run(f"git clone -q http://web.test:{web.port}/r.git /tmp/r2")
    assert got.stdout == "from the repository\n", got.stderr
    assert other.exit_code != 0
    assert {host for host, _ in web.asked} == {f"git.test:{web.port}"}


async def test_a_server_that_speaks_first_is_heard(
    echo: Any, sandbox_to: Make, inside: Any
) -> None:
    text = f"""
import socket
s = socket.create_connection(("web.test", {echo.port}), 10)
print(s.recv(100)); s.sendall(b"HELO me"); print(s.recv(100))
s.shutdown(socket.SHUT_WR); print(s.recv(100))
"""
    async with sandbox_to(f"web.test:{echo.port}") as sandbox:
        result = (await sandbox.run(inside(text))).check()
    assert result.stdout.split("\n")[:3] == ["b'220 welcome\\n'", "b'HELO me'", "b''"]
    assert echo.heard == [b"HELO me"]


async def test_the_proxies_inside_serve_those_who_ask(web: Any, sandbox_to: Make) -> None:
    at = f"http://web.test:{web.port}/hello"
    async with sandbox_to(f"web.test:{web.port}") as sandbox:
        for options in (
            "-x http://127.0.0.1:3128",
            "-p -x http://127.0.0.1:3128",
            "--socks5-hostname 127.0.0.1:1080",
            "--socks5 127.0.0.1:1080",
        ):
            result = await sandbox.run(f"curl -sS -m 10 {options} {at}")
            assert result.stdout == "hello from outside\n", options + result.stderr
    assert len(web.asked) == 4


async def test_a_wildcard_is_one_label_deep(web: Any, sandbox_to: Make) -> None:
    async with sandbox_to(f"*.wild.test:{web.port}", "wild.test") as sandbox:
        names = ("a.wild.test", "b.a.wild.test", "xwild.test", "wild.test.evil.test")
        answers = [(await sandbox.run(f"getent ahostsv4 {name}")).exit_code for name in names]
    assert answers == [0, 2, 2, 2]


async def test_a_program_that_asks_for_usable_addresses_only_gets_them(
    sandbox_to: Make, inside: Any
) -> None:
    text = """
import socket
print(socket.getaddrinfo("web.test", 443, flags=socket.AI_ADDRCONFIG, type=socket.SOCK_STREAM))
"""
    async with sandbox_to("web.test") as sandbox:
        result = (await sandbox.run(inside(text))).check()
    assert "198.18.0.2" in result.stdout


async def test_a_directory_as_root_is_told_whom_to_ask(sandbox_to: Make, tmp_path: Path) -> None:
    from cloister import DirectoryRoot

    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "resolv.conf").write_text("nameserver 192.0.2.1\n")
    root.chmod(0o755)
    async with sandbox_to("web.test", root=DirectoryRoot(root)) as sandbox:
        assert await sandbox.files.read("/etc/resolv.conf") == b"nameserver 198.18.0.1\n"
