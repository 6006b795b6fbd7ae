"""One image that is here, with everything a sandbox needs to stand on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.model import User


@dataclass(frozen=True, slots=True)
class Image:
    """An immutable root filesystem, by digest.

    `layers` are directories of the host, the uppermost first. `user` is None where the image does
    not say; `notes` are what it asks for and does not get.
    """

    digest: str
    names: tuple[str, ...]
    layers: tuple[Path, ...]
    layer_digests: tuple[str, ...]
    env: Mapping[str, str]
    user: User | None
    workdir: str | None
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    notes: tuple[str, ...]
    origin: str
    platform: str
    content_bytes: int
    created_at: float

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it; paths of the host are left out."""
        return {
            "digest": self.digest,
            "names": list(self.names),
            "layers": list(self.layer_digests),
            "env": dict(self.env),
            "user": None if self.user is None else f"{self.user.uid}:{self.user.gid}",
            "workdir": self.workdir,
            "entrypoint": list(self.entrypoint),
            "cmd": list(self.cmd),
            "notes": list(self.notes),
            "origin": self.origin,
            "platform": self.platform,
            "content_bytes": self.content_bytes,
            "created_at": self.created_at,
        }


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What the store keeps of an image beside its layers.

    `aliases` are digests of indexes that lead to it.
    """

    env: Mapping[str, str]
    user: User | None
    workdir: str | None
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    notes: tuple[str, ...]
    origin: str
    platform: str
    content_bytes: int
    aliases: tuple[str, ...] = ()

    def as_json(self) -> str:
        """Return it as the text that is kept."""
        document = {name: getattr(self, name) for name in ImageFacts.__dataclass_fields__}
        return json.dumps(document, sort_keys=True, separators=(",", ":"))


def read_image_facts(text: str) -> ImageFacts:
    """Read what `as_json` wrote."""
    document = json.loads(text)
    user = document["user"]
    return ImageFacts(
        env=document["env"],
        user=None if user is None else User(*user),
        workdir=document["workdir"],
        entrypoint=tuple(document["entrypoint"]),
        cmd=tuple(document["cmd"]),
        notes=tuple(document["notes"]),
        origin=document["origin"],
        platform=document["platform"],
        content_bytes=document["content_bytes"],
        aliases=tuple(document["aliases"]),
    )
