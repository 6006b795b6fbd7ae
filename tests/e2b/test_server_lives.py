"""A server that is killed and started again, and one that is reached by names and TLS."""

from __future__ import annotations

import datetime
import ipaddress
import shutil
import signal
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from e2b import Sandbox, SandboxState
from e2b.exceptions import SandboxException, SandboxNotFoundException

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fresh(server: Any) -> Iterator[Any]:
    """Another server of the same kind, not yet started."""
    directory = Path(tempfile.mkdtemp(prefix="e2b-", dir=ROOT / ".venv"))
    one = type(server)(directory)
    yield one
    if one.process is not None:
        one.stop()
    shutil.rmtree(directory, ignore_errors=True)


def test_after_a_crash_what_was_paused_goes_on_and_what_ran_is_gone(fresh: Any) -> None:
    fresh.start()
    options = {"api_key": fresh.key("acme")}

    def pointed() -> dict[str, str]:
        return {**options, "api_url": fresh.url, "sandbox_url": fresh.url}

    asleep = Sandbox.create(metadata={"name": "asleep"}, **pointed())
    asleep.files.write("kept", "whole")
    asleep.pause(keep_memory=False)
    running = Sandbox.create(**pointed())
    fresh.stop(signal.SIGKILL)
    fresh.start()
    with pytest.raises(SandboxNotFoundException):
        Sandbox.get_info(running.sandbox_id, **pointed())
    info = Sandbox.get_info(asleep.sandbox_id, **pointed())
    assert (info.state, info.metadata) == (SandboxState.PAUSED, {"name": "asleep"})
    again = Sandbox.connect(asleep.sandbox_id, **pointed())
    assert again.files.read("kept") == "whole"
    assert again._envd_access_token == asleep._envd_access_token
    assert again.kill() is True
    assert fresh.stop() == 0


def test_where_files_are_in_memory_a_snapshot_is_refused_with_whose_move_it_is(fresh: Any) -> None:
    fresh.config.write_text('hosts = ["127.0.0.1"]\n')
    fresh.start()
    pointed = {"api_key": fresh.key("acme"), "api_url": fresh.url, "sandbox_url": fresh.url}
    with Sandbox.create(**pointed) as sandbox:
        for refused in (sandbox.create_snapshot, lambda: sandbox.pause(keep_memory=False)):
            with pytest.raises(SandboxException, match="whoever runs this server can run"):
                refused()
        assert sandbox.commands.run("echo goes on").stdout == "goes on\n"
    assert fresh.stop() == 0


def test_names_below_a_domain_lead_to_the_api_and_to_ports(fresh: Any) -> None:
    certificate, key = make_certificate(fresh.directory, "sbx.test")
    fresh.config.write_text(
        f'unlimited_disk = true\nhosts = ["*.sbx.test"]\n'
        f'certificate = "{certificate}"\nkey = "{key}"\n'
    )
    fresh.start()
    trust = ssl.create_default_context(cafile=str(certificate))
    with httpx.Client(base_url=fresh.url, verify=trust, timeout=30) as client:
        port = httpx.URL(fresh.url).port
        named = {"Host": f"api.sbx.test:{port}", "X-API-KEY": fresh.key("acme")}
        made = client.post("/v2/sandboxes", json={"templateID": "base"}, headers=named)
        assert made.status_code == 201
        box = made.json()
        assert box["domain"] == f"sbx.test:{port}"
        envd = {
            "Host": f"49983-{box['sandboxID']}.sbx.test:{port}",
            "X-Access-Token": box["envdAccessToken"],
        }
        assert client.get("/health", headers=envd).status_code == 204
        written = client.post(
            "/files?path=x",
            content=b"1",
            headers={**envd, "Content-Type": "application/octet-stream"},
        )
        assert written.status_code == 200
        elsewhere = {**named, "Host": "api.other.test"}
        assert client.get("/v2/sandboxes", headers=elsewhere).status_code == 400
    assert fresh.stop() == 0


def make_certificate(directory: Path, domain: str) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, domain)])
    names = [
        x509.DNSName(f"*.{domain}"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_path, key_path = directory / "tls.pem", directory / "tls.key"
    certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate_path, key_path
