"""Clients of several languages that nobody told of a gateway work, opened or passed through."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloister import Mount, Result, Sandbox
from cloister.node import Node
from cloister.policy import Egress

from .conftest import USUAL_WALL

LOOPBACK = "127.0.0.1"
# The first is opened, for it has rules on requests; the second is passed through; both are TLS.
OPENED, PASSED = "web.test", "other.test"

# A machine whose processor is emulated takes a minute to start Java.
CLIENT_S = 300 if USUAL_WALL == "microvm" else 60

Reach = Callable[..., Sandbox]


@pytest.fixture
async def reach(tls: Any, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Reach:
    """Make a sandbox that may get what is below /files/ of one host, and all of the other."""
    monkeypatch.setenv("CLOISTER_CA_FILE", str(certificate))
    Node.current().gateway.answers = {name: [LOOPBACK] for name in (OPENED, PASSED)}
    rule = {
        "name": "read",
        "host": f"{OPENED}:{tls.port}",
        "methods": ["GET", "HEAD"],
        "paths": ["/files/**"],
        "effect": "allow",
    }
    egress = Egress((f"{PASSED}:{tls.port}",), (OPENED, PASSED), (rule,))
    return lambda **more: Sandbox(egress=egress, **more)


@pytest.fixture
def files(documents: Path) -> Path:
    """What may be got."""
    place = documents / "files"
    place.mkdir()
    (place / "hello").write_text("hello from outside\n")
    return place


def hosts(tls: Any) -> list[str]:
    return [f"{name}:{tls.port}" for name in (OPENED, PASSED)]


def require_both(tls: Any, path: str) -> None:
    """The far end was asked by both names, and for nothing that was not allowed."""
    asked = {host for host, where in tls.asked if where.startswith(path)}
    assert asked == set(hosts(tls)), tls.asked
    opened = [where for host, where in tls.asked if host == f"{OPENED}:{tls.port}"]
    assert all(where.startswith("/files/") for where in opened)


def _go() -> str | None:
    """Return the host's go, if it lies where sandboxes see it: below /usr."""
    found = shutil.which("go", path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin")
    real = None if found is None else os.path.realpath(found)
    return real if real is not None and real.startswith("/usr/") else None


GO = _go()


@pytest.mark.skipif(GO is None, reason="go is not installed")
async def test_go_fetches_modules(tls: Any, files: Path, reach: Reach) -> None:
    versions = files / "tiny.test" / "tiny" / "@v"
    versions.mkdir(parents=True)
    (versions / "list").write_text("v1.0.0\n")
    (versions / "v1.0.0.info").write_text('{"Version":"v1.0.0","Time":"2024-01-01T00:00:00Z"}')
    (versions / "v1.0.0.mod").write_text("module tiny.test/tiny\n")
    with zipfile.ZipFile(versions / "v1.0.0.zip", "w") as archive:
        archive.writestr("tiny.test/tiny@v1.0.0/go.mod", "module tiny.test/tiny\n")
        archive.writestr("tiny.test/tiny@v1.0.0/tiny.go", "package tiny\n")
    env = {"GOSUMDB": "off", "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}

    async def get(sandbox: Sandbox, base: str, place: str) -> Result:
        more = {"GOPROXY": f"https://{base}", "GOPATH": f"/tmp/{place}", "GOCACHE": "/tmp/cache"}
        command = [str(GO), "mod", "download", "-json", "tiny.test/tiny@v1.0.0"]
        return await sandbox.run(command, env={**env, **more}, timeout=CLIENT_S)

    async with reach() as sandbox:
        for number, host in enumerate(hosts(tls)):
            result = await get(sandbox, f"{host}/files", f"go{number}")
            assert result.ok and '"Version": "v1.0.0"' in result.stdout, result.stdout
        denied = await get(sandbox, f"{OPENED}:{tls.port}/elsewhere", "go2")
        assert not denied.ok and "403" in denied.stdout
    require_both(tls, "/files/tiny.test/tiny/@v/v1.0.0.zip")


JAVA = """
import java.net.*;
import java.net.http.*;
public class Get {
    public static void main(String[] words) throws Exception {
        for (String word : words) {
            var old = (HttpURLConnection) new URL(word).openConnection();
            System.out.println("old " + old.getResponseCode());
            var request = HttpRequest.newBuilder(URI.create(word)).build();
            var client = HttpClient.newHttpClient();
            var answer = client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println("new " + answer.statusCode() + " " + answer.body().strip());
        }
    }
}
"""


@pytest.mark.skipif(shutil.which("javac") is None, reason="java is not installed")
async def test_java_trusts_the_store_it_is_given(
    tls: Any, files: Path, reach: Reach, tmp_path: Path
) -> None:
    (tmp_path / "Get.java").write_text(JAVA)
    subprocess.run(["javac", "-d", tmp_path / "built", tmp_path / "Get.java"], check=True)
    urls = [f"https://{host}/files/hello" for host in hosts(tls)]
    urls.append(f"https://{OPENED}:{tls.port}/hello")
    async with reach() as sandbox:
        await sandbox.files.copy_in(tmp_path / "built", "/workspace/built")
        command = ["java", "-cp", "/workspace/built", "Get", *urls]
        results = [await sandbox.run(command, timeout=CLIENT_S)]
        if Path("/etc/ssl/certs/java/cacerts").is_file():
            # The store where Java looks if no variable says otherwise.
            results.append(await sandbox.run(["env", "-i", *command], timeout=CLIENT_S))
    for result in results:
        good = ["old 200", "new 200 hello from outside"]
        found = result.stdout.splitlines()
        assert found[:4] == good * 2, result.stderr
        assert found[4] == "old 403" and found[5].startswith("new 403")
    require_both(tls, "/files/hello")


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
async def test_npm_fetches_packages(tls: Any, files: Path, reach: Reach) -> None:
    package = _tar({"package/package.json": '{"name":"tiny-of-tests","version":"1.0.0"}'})
    (files / "tiny.tgz").write_bytes(package)
    async with reach() as sandbox:
        for number, host in enumerate(hosts(tls)):
            about = {
                "name": "tiny-of-tests",
                "dist-tags": {"latest": "1.0.0"},
                "versions": {
                    "1.0.0": {
                        "name": "tiny-of-tests",
                        "version": "1.0.0",
                        "dist": {
                            "tarball": f"https://{host}/files/tiny.tgz",
                            "shasum": hashlib.sha1(package).hexdigest(),
                        },
                    }
                },
            }
            (files / "tiny-of-tests").write_text(json.dumps(about))
            result = await sandbox.run(
                f"mkdir -p /tmp/npm{number} && cd /tmp/npm{number} && npm install --no-audit"
                f" --no-fund --no-update-notifier --cache /tmp/npm{number}/cache"
                f" --registry https://{host}/files/ tiny-of-tests"
                " && cd node_modules && echo *",
                timeout=CLIENT_S,
            )
            assert "tiny-of-tests" in result.stdout, result.stderr
    require_both(tls, "/files/tiny.tgz")


def _tar(members: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


def _toolchain() -> Path | None:
    """Return the directory of a cargo that is not the one that only chooses another."""
    if shutil.which("cargo") is None:
        return None
    found = subprocess.run(
        ["rustc", "--print", "sysroot"], capture_output=True, text=True, check=False
    )
    place = Path(found.stdout.strip() or "/nowhere")
    return place if (place / "bin" / "cargo").is_file() else None


@pytest.mark.skipif(_toolchain() is None, reason="cargo is not installed")
async def test_cargo_fetches_crates(tls: Any, files: Path, reach: Reach) -> None:
    crate = _tar(
        {
            "tiny-1.0.0/Cargo.toml": '[package]\nname="tiny"\nversion="1.0.0"\nedition="2021"\n',
            "tiny-1.0.0/src/lib.rs": "",
        }
    )
    (files / "tiny.crate").write_bytes(crate)
    line = {"name": "tiny", "vers": "1.0.0", "deps": [], "features": {}, "yanked": False}
    line["cksum"] = hashlib.sha256(crate).hexdigest()
    (files / "index" / "ti" / "ny").mkdir(parents=True)
    (files / "index" / "ti" / "ny" / "tiny").write_text(json.dumps(line) + "\n")
    toolchain = _toolchain()
    assert toolchain is not None
    # Not its documentation: a machine is shown no more of a directory than fits its disk.
    mounts = [
        Mount(os.path.realpath(toolchain / part), f"/opt/rust/{part}", "read")
        for part in ("bin", "lib")
    ]
    manifest = '[package]\nname="mine"\nversion="0.1.0"\nedition="2021"\n[dependencies]\ntiny="1"\n'
    async with reach(mounts=mounts) as sandbox:
        for number, host in enumerate(hosts(tls)):
            (files / "index" / "config.json").write_text(
                json.dumps({"dl": f"https://{host}/files/{{crate}}.crate"})
            )
            place = f"/workspace/cargo{number}"
            await sandbox.files.write(f"{place}/Cargo.toml", manifest)
            await sandbox.files.write(f"{place}/src/lib.rs", "")
            config = (
                '[source.crates-io]\nreplace-with = "mine"\n'
                f'[source.mine]\nregistry = "sparse+https://{host}/files/index/"\n'
            )
            await sandbox.files.write(f"{place}/home/config.toml", config)
            result = await sandbox.run(
                ["/opt/rust/bin/cargo", "fetch"],
                cwd=place,
                env={"CARGO_HOME": f"{place}/home", "PATH": "/opt/rust/bin:/usr/bin:/bin"},
                timeout=CLIENT_S,
            )
            assert result.ok, result.stderr
    require_both(tls, "/files/tiny.crate")


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="apt is not installed")
async def test_apt_reads_a_repository(tls: Any, files: Path, reach: Reach) -> None:
    packages = files / "dists" / "stable" / "main" / "binary-amd64" / "Packages"
    packages.parent.mkdir(parents=True)
    packages.write_text(
        "Package: tiny-of-tests\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody\n"
        "Filename: ./tiny.deb\nSize: 1\nSHA256: 0\nDescription: tiny\n\n"
    )
    async with reach() as sandbox:
        for number, host in enumerate(hosts(tls)):
            place = f"/tmp/apt{number}"
            line = f"deb [trusted=yes] https://{host}/files stable main\n"
            await sandbox.files.write(f"{place}/sources.list", line)
            settings = [
                f"Dir::Etc::sourcelist={place}/sources.list",
                "Dir::Etc::sourceparts=/nowhere",
                f"Dir::State={place}/state",
                f"Dir::Cache={place}/cache",
                "Acquire::Languages=none",
            ]
            options = " ".join(f"-o {each}" for each in settings)
            result = await sandbox.run(
                f"mkdir -p {place}/state/lists/partial {place}/cache/archives/partial"
                f" && apt-get {options} update && apt-cache {options} show tiny-of-tests",
                timeout=CLIENT_S,
            )
            assert "Package: tiny-of-tests" in result.stdout, result.stdout + result.stderr
    require_both(tls, "/files/dists/stable/main/binary-amd64/Packages")
