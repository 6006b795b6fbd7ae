"""What a template is made of, given in Python or read from a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.errors import PolicyError, RequestError
from cloister.model import parse_command, parse_duration, parse_name, quote
from cloister.node.templates import Ready
from cloister.policy import MAXIMUM_POLICY_BYTES, Policy, read_policy
from cloister.policy.fields import nearest

_KEYS = ("name", "image", "dockerfile", "context", "steps", "start", "ready", "policy", "limits")
_READY_KEYS = ("command", "port", "timeout")
_MAXIMUM_STEPS = 100
_SHELL = ("/bin/sh", "-c")


@dataclass(frozen=True, slots=True, init=False)
class TemplateSpec:
    """A template before it is built. It stands on an image, or on what a Dockerfile makes.

    `steps` are shell lines, run once. `start` is the program that every sandbox of it starts with.
    """

    name: str
    image: str | None
    dockerfile: Path | None
    directory: Path | None
    steps: tuple[str, ...]
    start: tuple[str, ...]
    ready: Ready | None
    policy: Policy

    def __init__(
        self,
        name: str,
        *,
        image: str | None = None,
        dockerfile: Path | None = None,
        directory: Path | None = None,
        steps: Sequence[str] = (),
        start: str | Sequence[str] = (),
        ready: Ready | None = None,
        policy: Policy | None = None,
    ) -> None:
        if (image is None) == (dockerfile is None):
            raise RequestError("a template stands on an image or on a Dockerfile; name one of them")
        given = (steps,) if isinstance(steps, str) else tuple(steps)
        if len(given) > _MAXIMUM_STEPS or not all(isinstance(each, str) for each in given):
            raise RequestError(f"steps must be at most {_MAXIMUM_STEPS} shell lines")
        values: dict[str, object] = {
            "name": parse_name(name, "template"),
            "image": image,
            "dockerfile": dockerfile,
            "directory": directory,
            "steps": given,
            "start": parse_program(start, "start"),
            "ready": ready,
            "policy": Policy() if policy is None else policy,
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)


def parse_program(value: object, field: str) -> tuple[str, ...]:
    """Return the argv of a shell line or of a list of words; nothing is no program."""
    if isinstance(value, str):
        words = (*_SHELL, value) if value else ()
    elif isinstance(value, Sequence) and all(isinstance(each, str) for each in value):
        words = tuple(value)
    else:
        raise RequestError(f"{field} is {quote(value)}; write a shell line or a list of words")
    if words:
        parse_command(list(words))
    return words


def make_ready(command: object = None, port: object = None, timeout: object = None) -> Ready | None:
    """Return a ready check, or None where none is asked for."""
    if command is None and port is None:
        if timeout is not None:
            raise RequestError("ready has a timeout and no command or port")
        return None
    if command is not None and port is not None:
        raise RequestError("ready has a command and a port; keep one of them")
    if port is not None and (type(port) is not int or not 0 < port < 65_536):
        raise RequestError(f"ready.port is {quote(port)}; ports are from 1 to 65535")
    timeout_s = 60.0 if timeout is None else parse_duration(timeout, "ready.timeout")
    words = () if command is None else parse_program(command, "ready.command")
    return Ready(words, port if isinstance(port, int) else None, timeout_s)


def load_template(path: Path) -> TemplateSpec:
    """Read a template from a file; paths in it are taken from where it is."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAXIMUM_POLICY_BYTES + 1)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > MAXIMUM_POLICY_BYTES:
        raise RequestError(f"{path} has more than {MAXIMUM_POLICY_BYTES} bytes")
    return parse_template(data, str(path), path.absolute().parent)


def parse_template(data: bytes, where: str, directory: Path) -> TemplateSpec:
    """Read the text of a template file; what is not known is an error."""
    try:
        table = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"it is no TOML: {error}", place=where) from error
    _require_known(table, _KEYS, where)
    ready = table.get("ready", {})
    if not isinstance(ready, dict):
        raise PolicyError(f"ready is {quote(ready)}; write a table", place=where)
    _require_known(ready, _READY_KEYS, f"{where} ready")
    dockerfile = _text(table, "dockerfile", where)
    context = _text(table, "context", where)
    if context is not None and dockerfile is None:
        raise PolicyError("context is for a dockerfile, and there is none", place=where)
    try:
        return TemplateSpec(
            _text(table, "name", where) or "",
            image=_text(table, "image", where),
            dockerfile=None if dockerfile is None else directory / dockerfile,
            directory=directory / (context or "."),
            steps=table.get("steps", ()),
            start=table.get("start", ()),
            ready=make_ready(ready.get("command"), ready.get("port"), ready.get("timeout")),
            policy=_policy(table, where),
        )
    except PolicyError:
        raise
    except RequestError as error:
        raise PolicyError(str(error), place=where) from error


def _policy(table: Mapping[str, Any], where: str) -> Policy:
    policy = table.get("policy", {})
    if not isinstance(policy, dict):
        raise PolicyError(f"policy is {quote(policy)}; write a table", place=where)
    if "root" in policy:
        raise PolicyError("a template's root is its image; leave it out", place=f"{where} policy")
    if "limits" in table:
        if "limits" in policy:
            raise PolicyError("limits stand twice; keep one of them", place=where)
        policy = {**policy, "limits": table["limits"]}
    return read_policy(policy, where)


def _text(table: Mapping[str, Any], key: str, where: str) -> str | None:
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        raise PolicyError(f"{key} is {quote(value)}; write it as text", place=where)
    return value


def _require_known(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    valid = tuple(known)
    for key in table:
        if key not in valid:
            raise PolicyError(
                f"{quote(key)} is no part of a template; there are {', '.join(valid)}",
                place=where,
                nearest=nearest(key, valid),
            )
