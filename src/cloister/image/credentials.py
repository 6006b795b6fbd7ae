"""Who we are to a registry: what `docker login` and programs like it have left for the person."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.errors import RequestError
from cloister.model import quote

_HELPER = re.compile(r"[A-Za-z0-9_.-]+")
_HELPER_S = 30
_TOKEN_USER = "<token>"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Credentials:
    """A name and a password, or a token that others are asked for with. Never shown."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials({self.user!r})"

    @property
    def is_identity_token(self) -> bool:
        """Whether it is to be exchanged, not shown to the registry itself."""
        return self.user == _TOKEN_USER

    @property
    def basic(self) -> str:
        """The value of an `Authorization` header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def config_file() -> Path:
    """Return where they are kept."""
    directory = os.environ.get("DOCKER_CONFIG")
    return (Path(directory) if directory else Path.home() / ".docker") / "config.json"


def find_credentials(address: str, file: Path | None = None) -> Credentials | None:
    """Return what is known for HOST[:PORT], or None."""
    path = config_file() if file is None else file
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise RequestError(f"{path} cannot be read; mend it, or log in again") from error
    if not isinstance(document, dict):
        raise RequestError(f"{path} is no JSON object; mend it, or log in again")
    helper = _section(document, "credHelpers").get(address) or document.get("credsStore")
    if isinstance(helper, str) and (found := _ask_helper(helper, address)) is not None:
        return found
    entry = _section(document, "auths").get(address)
    return _decode(entry, path) if isinstance(entry, dict) else None


def _section(document: dict[str, Any], name: str) -> dict[str, Any]:
    section = document.get(name)
    return section if isinstance(section, dict) else {}


def _decode(entry: dict[str, Any], path: Path) -> Credentials | None:
    if isinstance(token := entry.get("identitytoken"), str) and token:
        return Credentials(_TOKEN_USER, token)
    if not isinstance(auth := entry.get("auth"), str) or not auth:
        return None
    try:
        user, colon, password = base64.b64decode(auth, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise RequestError(f"{path} has an entry that is not base64; log in again") from error
    return Credentials(user, password.rstrip("\0")) if colon else None


def _ask_helper(helper: str, address: str) -> Credentials | None:
    if _HELPER.fullmatch(helper) is None:
        raise RequestError(f"credential helper is {quote(helper)}; it must be a plain name")
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, "get"], input=address.encode(), capture_output=True, timeout=_HELPER_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RequestError(f"{program} cannot be run; install it, or log in again") from error
    if done.returncode != 0:
        # Its way of saying that it knows nothing.
        return None
    try:
        answer = json.loads(done.stdout)
        return Credentials(str(answer["Username"]), str(answer["Secret"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RequestError(f"{program} gave no answer that can be read") from error
