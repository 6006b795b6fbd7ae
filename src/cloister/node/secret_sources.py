"""Reads secrets where a policy says they are, when a sandbox starts, in the owner's process."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from cloister.errors import HostError, NotFound, RequestError, Unsupported
from cloister.node.secret_value import SecretValue
from cloister.policy.secrets import SecretBinding, Source

_MOST_BYTES = 64 * 1024
_COMMAND_S = 60.0
_VAULT_S = 15.0
_VAULT_TOKEN = "VAULT_TOKEN"  # noqa: S105
_LOCAL = ("127.0.0.1", "localhost", "[::1]")


async def read_secret(binding: SecretBinding) -> SecretValue:
    """Return the value of a secret, or say what is wrong with its source and never what it is."""
    match binding.source:
        case Source.ENV:
            value = os.environ.get(binding.where)
            if value is None:
                raise NotFound(
                    f"the secret {binding.name} is to come from the variable {binding.where}, "
                    "which is not set; export it",
                    what=binding.where,
                )
        case Source.FILE:
            value = await asyncio.to_thread(_read_file, binding)
        case Source.COMMAND:
            value = await command_output(binding.name, binding.argv)
        case Source.KEYRING:
            value = await asyncio.to_thread(_read_keyring, binding)
        case Source.VAULT:
            value = await asyncio.to_thread(_read_vault, binding)
        case Source.MINT | Source.TENANT:
            raise RequestError(f"the secret {binding.name} is minted or stored, not read here")
    return SecretValue(binding.name, value)


def _read_file(binding: SecretBinding) -> str:
    path = Path(binding.where).expanduser()
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise NotFound(
            f"the secret {binding.name} is to come from {path}, which cannot be read: "
            f"{error.strerror}",
            what=str(path),
        ) from None
    return _text(binding.name, data)


def _text(name: str, data: bytes) -> str:
    if len(data) > _MOST_BYTES:
        raise RequestError(f"the secret {name} is longer than {_MOST_BYTES} bytes")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        # Without the original, whose text has some of it.
        raise RequestError(f"the secret {name} is not ASCII") from None


async def command_output(name: str, argv: tuple[str, ...], stdin: str | None = None) -> str:
    """Return what a command prints; what it complains of goes to the owner's own stderr."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            limit=_MOST_BYTES,
        )
    except OSError as error:
        raise NotFound(
            f"the command of the secret {name} cannot be run: {error.strerror}", what=argv[0]
        ) from None
    try:
        async with asyncio.timeout(_COMMAND_S):
            if process.stdin is not None:
                with contextlib.suppress(ConnectionError):
                    process.stdin.write((stdin or "").encode())
                    await process.stdin.drain()
                process.stdin.close()
            if process.stdout is None:
                raise HostError(f"the command of the secret {name} has no output")
            data = b""
            while len(data) <= _MOST_BYTES and (part := await process.stdout.read(_MOST_BYTES)):
                data += part
            if len(data) > _MOST_BYTES:
                raise RequestError(f"the secret {name} is longer than {_MOST_BYTES} bytes")
            code = await process.wait()
    except TimeoutError:
        raise HostError(
            f"the command of the secret {name} did not end within {_COMMAND_S:g} s"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code != 0:
        raise HostError(f"the command of the secret {name} failed with exit code {code}")
    return _text(name, data)


def _read_keyring(binding: SecretBinding) -> str:
    service, slash, user = binding.where.partition("/")
    if not slash or not service or not user:
        raise RequestError(
            f"the secret {binding.name} is to come from the keyring; "
            'write from = "keyring:service/user"'
        )
    try:
        keyring = importlib.import_module("keyring")
    except ImportError:
        return _ask_secret_tool(binding, service, user)
    try:
        value = keyring.get_password(service, user)
    except Exception as error:
        raise HostError(
            f"the keyring did not give the secret {binding.name}: {type(error).__name__}"
        ) from None
    if value is None:
        raise NotFound(f"the keyring has no {service}/{user}", what=binding.where)
    return str(value)


def _ask_secret_tool(binding: SecretBinding, service: str, user: str) -> str:
    tool = shutil.which("secret-tool")
    if tool is None:
        raise Unsupported(
            f"the secret {binding.name} is to come from the keyring, which nothing here can ask; "
            "pip install keyring, or install secret-tool"
        )
    try:
        asked = subprocess.run(
            [tool, "lookup", "service", service, "username", user],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=_COMMAND_S,
        )
    except subprocess.TimeoutExpired:
        # Its own text would have what was printed so far.
        raise HostError(f"the keyring did not answer within {_COMMAND_S:g} s") from None
    if asked.returncode != 0 or not asked.stdout:
        raise NotFound(f"the keyring has no {service}/{user}", what=binding.where)
    return _text(binding.name, asked.stdout)


def _read_vault(binding: SecretBinding) -> str:
    """Ask a server like Vault: "vault:https://host/v1/path#data.data.field"."""
    address, _, field = binding.where.partition("#")
    parts = urllib.parse.urlsplit(address)
    is_local = parts.scheme == "http" and parts.netloc.rpartition(":")[0] in _LOCAL
    if not field or not (parts.scheme == "https" or is_local):
        raise RequestError(
            f"the secret {binding.name} is to come from a vault; "
            'write from = "vault:https://host/v1/path#data.data.field"'
        )
    token = os.environ.get(_VAULT_TOKEN)
    if token is None:
        raise NotFound(
            f"the secret {binding.name} is to come from a vault; set {_VAULT_TOKEN}",
            what=_VAULT_TOKEN,
        )
    request = urllib.request.Request(address, headers={"X-Vault-Token": token})  # noqa: S310
    try:
        # No proxy and no redirect: the token is for this server alone.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
        with opener.open(request, timeout=_VAULT_S) as answer:
            found = json.loads(answer.read(_MOST_BYTES))
        for key in field.split("."):
            found = found[key]
    except urllib.error.HTTPError as error:
        raise HostError(f"the vault answered {error.code} for {binding.name}") from None
    except OSError as error:
        raise HostError(
            f"the vault could not be asked for {binding.name}: {type(error).__name__}"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise NotFound(f"the vault has no {field} there", what=field) from None
    if not isinstance(found, str):
        raise RequestError(f"what the vault has for {binding.name} is no text")
    return found


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: object, **more: object) -> None:
        return None
