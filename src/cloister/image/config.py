"""What an image says of the programs in it: a stranger's wishes, held to the rules of the API."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloister.errors import ImageRefused, RequestError
from cloister.image.document import digest_field, parse_document, text_field, texts_field
from cloister.image.manifest import MAXIMUM_LAYERS, machine_platform
from cloister.model import parse_command, parse_cwd, parse_env, quote

# What other tools act on, and what becomes of it here.
_IGNORED = {
    "Volumes": "the image's volumes are not made; what is written there is part of the disk",
    "Healthcheck": "the image's health check is not run",
    "OnBuild": "the image's steps for images built on it are not run",
    "ExposedPorts": "the image's ports are not opened; use dial()",
    "StopSignal": "the image's stop signal is not used",
}
_MAXIMUM_USER_CHARACTERS = 128


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The part of an image's configuration that means something here, checked."""

    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    workdir: str | None = None
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    platform: tuple[str, str] = ("linux", "unknown")
    diff_ids: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def parse_config(data: bytes) -> ImageConfig:
    """Read the configuration of an image; anything the API would refuse is refused here too."""
    what = "the configuration of the image"
    document = parse_document(data, what)
    rootfs = document.get("rootfs")
    diff_ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(diff_ids, list) or len(diff_ids) > MAXIMUM_LAYERS:
        raise ImageRefused(f"{what} has no list of at most {MAXIMUM_LAYERS} layers")
    wishes = document.get("config") or {}
    if not isinstance(wishes, dict):
        raise ImageRefused(f"{what} says {quote(wishes)} of what to run")
    platform = (
        text_field(document, "os", what) or "linux",
        text_field(document, "architecture", what) or machine_platform()[1],
    )
    if platform != machine_platform():
        raise ImageRefused(
            f"the image is for {quote('/'.join(platform))}; "
            f"this machine is {'/'.join(machine_platform())}"
        )
    try:
        return _checked(wishes, platform, tuple(digest_field(each, what) for each in diff_ids))
    except ImageRefused:
        raise
    except RequestError as error:
        raise ImageRefused(f"{what} is refused: {error}") from error


def _checked(
    wishes: dict[str, Any], platform: tuple[str, str], diff_ids: tuple[str, ...]
) -> ImageConfig:
    what = "the configuration of the image"
    entrypoint = texts_field(wishes, "Entrypoint", what)
    cmd = texts_field(wishes, "Cmd", what)
    if entrypoint or cmd:
        parse_command([*entrypoint, *cmd])
    return ImageConfig(
        env=_env(texts_field(wishes, "Env", what)),
        user=_user(text_field(wishes, "User", what)),
        workdir=_workdir(text_field(wishes, "WorkingDir", what)),
        entrypoint=entrypoint,
        cmd=cmd,
        platform=platform,
        diff_ids=diff_ids,
        notes=tuple(words for name, words in _IGNORED.items() if wishes.get(name)),
    )


def _env(pairs: tuple[str, ...]) -> dict[str, str]:
    variables = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise RequestError(f"env has {quote(pair)}; it must be NAME=VALUE")
        variables[name] = value
    return parse_env(variables)


def _user(text: str | None) -> str | None:
    if text is None:
        return None
    if len(text) > _MAXIMUM_USER_CHARACTERS or not text.isprintable() or text.count(":") > 1:
        raise RequestError(f"user is {quote(text)}; it must be NAME, ID, NAME:GROUP or ID:ID")
    return text


def _workdir(text: str | None) -> str | None:
    """Return it as one plain path. It is entered inside, where it leads to no other place."""
    if text is None:
        return None
    path = parse_cwd(text)
    if ".." in path.split("/"):
        raise RequestError(f'working directory is {quote(path)}; it must be without ".."')
    normal = "/" + posixpath.normpath(path).lstrip("/")
    # Directories of descriptors have led out of other containers (CVE-2024-21626).
    if normal == "/proc" or normal.startswith("/proc/"):
        raise RequestError(f"working directory is {quote(path)}; it must not be in /proc")
    return normal
