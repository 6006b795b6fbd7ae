"""An image while it is built: its layers so far, and what is said of the programs in it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from cloister.errors import Exhausted
from cloister.image import Image, LayerFacts, Library, parse_config
from cloister.image.accounts import find_user
from cloister.image.blobs import digest_of
from cloister.image.image import ImageFacts
from cloister.image.rootfs_tar import make_config
from cloister.model import User
from cloister.store import Store

# Tools that read images take 127; an image built further on this one has room left.
_MAXIMUM_LAYERS = 120
DEFAULT_SHELL = ("/bin/sh", "-c")


@dataclass(frozen=True, slots=True)
class Draft:
    """What has been made so far; each step gives another one.

    `base` is the image it began with, which keeps that alive.
    """

    base: str
    layers: tuple[str, ...]
    content_bytes: int = 0
    env: dict[str, str] = field(default_factory=dict)
    user: str | None = None
    workdir: str = "/"
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    shell: tuple[str, ...] = DEFAULT_SHELL
    notes: tuple[str, ...] = ()

    @classmethod
    def on(cls, image: Image) -> Draft:
        """Begin with an image as it is."""
        return cls(
            base=image.digest,
            layers=image.layer_digests,
            content_bytes=image.content_bytes,
            env=dict(image.env),
            user=None if image.user is None else f"{image.user.uid}:{image.user.gid}",
            workdir=image.workdir or "/",
            entrypoint=image.entrypoint,
            cmd=image.cmd,
        )

    def with_layer(self, made: tuple[str, LayerFacts] | None) -> Draft:
        """Return it with what a step made on top; None is nothing."""
        if made is None:
            return self
        digest, facts = made
        # One that is there already would hide nothing more by being there twice.
        layers = (*(each for each in self.layers if each != digest), digest)
        if len(layers) > _MAXIMUM_LAYERS:
            raise Exhausted(
                f"the image has more than {_MAXIMUM_LAYERS} layers; join steps with &&",
                limit="disk",
            )
        return replace(self, layers=layers, content_bytes=self.content_bytes + facts.bytes)

    def config(self) -> bytes:
        """Return it as an image's configuration; the same steps give the same bytes."""
        wishes: dict[str, Any] = {
            "Env": [f"{name}={value}" for name, value in self.env.items()],
            "User": self.user or "",
            "WorkingDir": self.workdir,
            "Entrypoint": list(self.entrypoint),
            "Cmd": list(self.cmd),
            "Labels": self.labels,
        }
        return make_config(list(self.layers), {k: v for k, v in wishes.items() if v})


def user_of(draft: Draft, store: Store) -> User:
    """Return the ids of the draft's user, by the list of users in its own layers."""
    if draft.user is None:
        return User(0, 0)
    return find_user(draft.user, [store.layers.path(each) for each in reversed(draft.layers)])


async def put_image(draft: Draft, store: Store, *, origin: str, name: str | None = None) -> Image:
    """Make an image of it, held to the same rules as one that is pulled."""

    def put() -> Image:
        data = draft.config()
        config = parse_config(data)
        facts = ImageFacts(
            env=config.env,
            user=None if config.user is None else user_of(draft, store),
            workdir=config.workdir,
            entrypoint=config.entrypoint,
            cmd=config.cmd,
            notes=draft.notes,
            origin=origin,
            platform="/".join(config.platform),
            content_bytes=draft.content_bytes,
        )
        digest = digest_of(data)
        store.images.put(digest, draft.layers, facts.as_json(), name=name)
        return Library(store).find(digest)

    return await asyncio.to_thread(put)
