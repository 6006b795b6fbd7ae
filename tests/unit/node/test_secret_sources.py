"""A secret is read where the policy says it is, and no error has any of it."""

from __future__ import annotations

import http.server
import json
import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloister.errors import CloisterError, HostError, NotFound, RequestError, Unsupported
from cloister.node import secret_sources
from cloister.node.secret_sources import read_secret
from cloister.node.secret_value import SecretValue
from cloister.policy.secrets import SecretBinding

VALUE = "ghp_0123456789abcdef0123"


def binding(source: str) -> SecretBinding:
    return SecretBinding("TOKEN", from_=source, hosts=["a.test"], header="Authorization")


async def revealed(source: str) -> str:
    return (await read_secret(binding(source))).reveal()


async def test_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE", VALUE)
    assert await revealed("env:SOURCE") == VALUE
    with pytest.raises(NotFound, match="which is not set"):
        await revealed("env:NO_SUCH_VARIABLE")


async def test_a_file_without_its_last_line_end(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(VALUE + "\n")
    assert await revealed(f"file:{path}") == VALUE
    with pytest.raises(NotFound, match="cannot be read"):
        await revealed(f"file:{tmp_path}/none")
    path.write_bytes(b"\xff" * 20)
    with pytest.raises(RequestError, match="not ASCII"):
        await revealed(f"file:{path}")
    path.write_bytes(b"a" * 100_000)
    with pytest.raises(RequestError, match="longer than"):
        await revealed(f"file:{path}")


async def test_what_a_command_prints() -> None:
    assert await revealed(f"command:echo {VALUE}") == VALUE
    with pytest.raises(HostError, match="exit code 3") as failed:
        await revealed(f"command:sh -c 'echo {VALUE}; exit 3'")
    assert VALUE not in str(failed.value)
    with pytest.raises(NotFound, match="cannot be run"):
        await revealed("command:/no/such/program")
    with pytest.raises(RequestError, match="longer than"):
        await revealed("command:yes")


async def test_a_keyring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "secret-tool"
    tool.write_text(f'#!/bin/sh\n[ "$3 $5" = "service me" ] && echo {VALUE}\n')
    tool.chmod(0o755)
    monkeypatch.setitem(sys.modules, "keyring", None)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert await revealed("keyring:service/me") == VALUE
    with pytest.raises(NotFound, match="keyring has no"):
        await revealed("keyring:service/other")
    with pytest.raises(RequestError, match="service/user"):
        await revealed("keyring:service")
    monkeypatch.setattr(secret_sources.shutil, "which", lambda name: None)
    with pytest.raises(Unsupported, match="pip install keyring"):
        await revealed("keyring:service/me")


@pytest.fixture
def vault() -> Iterator[tuple[int, list[str | None]]]:
    tokens: list[str | None] = []

    class Answering(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tokens.append(self.headers["X-Vault-Token"])
            if self.path == "/away":
                self.send_response(302)
                self.send_header("Location", "/v1/kv")
                self.end_headers()
                return
            self.send_response(200 if self.path == "/v1/kv" else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"data": {"data": {"token": VALUE, "number": 7}}}).encode())

        def log_message(self, format: str, *arguments: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server.server_port, tokens
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_vault(
    vault: tuple[int, list[str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, tokens = vault
    monkeypatch.delenv("VAULT_TOKEN", raising=False)
    place = f"vault:http://127.0.0.1:{port}"
    with pytest.raises(NotFound, match="set VAULT_TOKEN"):
        await revealed(f"{place}/v1/kv#data.data.token")
    monkeypatch.setenv("VAULT_TOKEN", "hvs.token")
    assert await revealed(f"{place}/v1/kv#data.data.token") == VALUE
    assert tokens == ["hvs.token"]
    for address, reason in (
        (f"{place}/v1/kv#data.none", "has no data.none"),
        (f"{place}/v1/kv#data.data.number", "is no text"),
        (f"{place}/none#data", "answered 404"),
        (f"{place}/away#data", "answered 302"),
        (f"{place}/v1/kv", "write from"),
        ("vault:http://vault.test/v1/kv#a", "write from"),
    ):
        with pytest.raises(CloisterError, match=reason) as failed:
            await revealed(address)
        assert VALUE not in str(failed.value)
        assert "hvs.token" not in str(failed.value)


BAD = (
    *("seven77", "a" * 20_000, "with\r\nline", "with\nline", "tab\tinside"),
    *("p\u00e4ssword1", " padded ok "),
)


@pytest.mark.parametrize("value", BAD)
def test_a_value_that_no_header_may_have_is_refused_without_being_shown(value: str) -> None:
    with pytest.raises(RequestError) as refused:
        SecretValue("TOKEN", value)
    assert value not in str(refused.value)


def test_a_value_cannot_be_shown_or_sent_away_by_accident() -> None:
    secret = SecretValue("TOKEN", VALUE)
    assert VALUE not in repr(secret) + str(secret) + f"{secret}"
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    assert secret.reveal() == VALUE
