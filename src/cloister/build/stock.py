"""Images, templates and volumes as a user of the library holds them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from cloister.build.building import BuildOptions, build_image
from cloister.build.debian import DebianRequest, build_debian
from cloister.build.progress import OnBuildProgress
from cloister.build.pulling import pull_image
from cloister.build.template import build_template
from cloister.build.template_file import TemplateSpec, load_template, make_ready
from cloister.build.volume_kinds import VolumeKind, kind_of, make_volume, parse_kind
from cloister.image import Image as StoredImage
from cloister.image import Library, OnProgress
from cloister.model import UNLIMITED, User, parse_bytes, parse_user
from cloister.node import open_store
from cloister.node.templates import TemplateRecord, Templates
from cloister.policy import Policy
from cloister.sandbox.volume_moving import move_volume
from cloister.store import Volume as StoredVolume

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Image:
    """An immutable root filesystem that is here; `Sandbox(image=image.digest)` stands on it."""

    stored: StoredImage

    @property
    def digest(self) -> str:
        """What it is, exactly."""
        return self.stored.digest

    @property
    def names(self) -> tuple[str, ...]:
        """What it is called here."""
        return self.stored.names

    @property
    def config(self) -> dict[str, Any]:
        """What it asks for: env, user, workdir, entrypoint, cmd; and `notes`, what it lacks."""
        described = self.stored.as_dict()
        return {
            key: described[key]
            for key in ("env", "user", "workdir", "entrypoint", "cmd", "notes", "platform")
        }

    @classmethod
    async def pull(
        cls, reference: str, *, name: str | None = None, on_progress: OnProgress | None = None
    ) -> Self:
        """Fetch an image: docker://HOST/NAME[:TAG][@DIGEST]."""
        store = await open_store()
        return cls(await pull_image(store, reference, name=name, on_progress=on_progress))

    @classmethod
    async def import_(
        cls, reference: str, *, name: str | None = None, on_progress: OnProgress | None = None
    ) -> Self:
        """Take an image from disk: tar:FILE, docker-archive:FILE[:TAG] or oci:DIRECTORY[:TAG]."""
        return await cls.pull(reference, name=name, on_progress=on_progress)

    @classmethod
    async def build(
        cls,
        context: PathLike,
        name: str,
        *,
        dockerfile: PathLike | None = None,
        arguments: Mapping[str, str] | None = None,
        target: str | None = None,
        policy: Policy | None = None,
        use_cache: bool = True,
        on_progress: OnBuildProgress | None = None,
    ) -> Self:
        """Build a Dockerfile; every step runs in a sandbox, under `policy` where one is given."""
        made = await build_image(
            Path(context),
            name,
            dockerfile=None if dockerfile is None else Path(dockerfile),
            options=BuildOptions(dict(arguments or {}), target, policy, use_cache),
            on_progress=on_progress,
        )
        return cls(made)

    @classmethod
    async def debian(
        cls,
        suite: str,
        name: str,
        *,
        include: Sequence[str] = (),
        variant: str = "minbase",
        mirror: str | None = None,
        on_progress: OnBuildProgress | None = None,
    ) -> Self:
        """Build an image of a Debian release with further packages, by mmdebstrap."""
        request = DebianRequest(suite, include, variant=variant, mirror=mirror)
        return cls(await build_debian(request, name, on_progress=on_progress))

    @classmethod
    async def find(cls, name: str) -> Self:
        """Return an image by NAME[:TAG], DIGEST or NAME@DIGEST."""
        store = await open_store()
        return cls(await asyncio.to_thread(Library(store).find, name))

    @classmethod
    async def list(cls) -> tuple[Self, ...]:
        """Return all images, oldest first."""
        store = await open_store()
        return tuple(cls(each) for each in await asyncio.to_thread(Library(store).list))

    @classmethod
    async def remove(cls, name: str) -> None:
        """Take a name away; what nothing stands on goes with the next `gc`."""
        store = await open_store()
        await asyncio.to_thread(Library(store).remove, name)


@dataclass(frozen=True, slots=True)
class Template:
    """A name for an image, a policy and a program; `Sandbox(template=name)` starts one."""

    record: TemplateRecord

    @property
    def name(self) -> str:
        """What it is called."""
        return self.record.name

    @property
    def version(self) -> int:
        """Which build of it this is; a name alone means the newest."""
        return self.record.version

    @property
    def reference(self) -> str:
        """Name and version, for `Sandbox(template=...)`."""
        return self.record.reference

    @property
    def image(self) -> str:
        """The digest of the image that its steps made."""
        return self.record.image

    @property
    def policy(self) -> Policy:
        """What its sandboxes are and may do."""
        return self.record.policy

    @classmethod
    async def build(
        cls,
        name: str,
        *,
        image: str,
        steps: Sequence[str] = (),
        start: str | Sequence[str] = (),
        ready: str | Sequence[str] | None = None,
        ready_port: int | None = None,
        ready_timeout: float | str | None = None,
        policy: Policy | None = None,
        use_cache: bool = True,
        on_progress: OnBuildProgress | None = None,
    ) -> Self:
        """Run the steps once on an image and keep the result as a new version."""
        checked = make_ready(ready, ready_port, ready_timeout)
        spec = TemplateSpec(
            name, image=image, steps=steps, start=start, ready=checked, policy=policy
        )
        return cls(await build_template(spec, use_cache=use_cache, on_progress=on_progress))

    @classmethod
    async def load(
        cls,
        path: PathLike,
        *,
        use_cache: bool = True,
        on_progress: OnBuildProgress | None = None,
    ) -> Self:
        """Build the template that a TOML file describes."""
        spec = await asyncio.to_thread(load_template, Path(path))
        return cls(await build_template(spec, use_cache=use_cache, on_progress=on_progress))

    @classmethod
    async def find(cls, reference: str) -> Self:
        """Return a template by NAME, the newest version, or NAME:VERSION."""
        store = await open_store()
        return cls(await asyncio.to_thread(Templates(store).find, reference))

    @classmethod
    async def list(cls) -> tuple[Self, ...]:
        """Return all versions of all templates, by name."""
        store = await open_store()
        return tuple(cls(each) for each in await asyncio.to_thread(Templates(store).all))

    @classmethod
    async def remove(cls, reference: str) -> None:
        """Remove one version, or a name with all of them."""
        store = await open_store()
        await asyncio.to_thread(Templates(store).remove, reference)


@dataclass(frozen=True, slots=True)
class Volume:
    """A directory with a name and a size; `Sandbox(volumes=["cache:/cache"])` shows one inside.

    Once a machine has written to it, it is a disk, and machines' alone until it is moved back.
    """

    stored: StoredVolume

    @property
    def name(self) -> str:
        """What it is called."""
        return self.stored.name

    @property
    def limit_bytes(self) -> int | None:
        """How much it may hold; None is without a limit."""
        return self.stored.limit_bytes

    @property
    def limit_inodes(self) -> int | None:
        """How many files it may hold; None is as many as fit."""
        return self.stored.limit_inodes

    @property
    def kind(self) -> VolumeKind:
        """What it is: a directory, or a disk that machines alone have."""
        return kind_of(self.stored)

    @classmethod
    async def create(
        cls,
        name: str,
        size: int | str,
        *,
        inodes: int | None = None,
        user: str | int | User = "user",
        kind: VolumeKind = "directory",
    ) -> Self:
        """Make an empty volume of a size, or "unlimited"; `user` is whose it is inside.

        `inodes` is how many files it may hold: taken where its size bounds them, refused otherwise.
        Of the `kind` "disk" it is for machines, and holds both by itself wherever it is kept.
        """
        size_bytes = None if size == UNLIMITED else parse_bytes(size, "size")
        store = await open_store()
        make = partial(make_volume, store, name, size_bytes, inodes, parse_user(user), kind)
        return cls(await asyncio.to_thread(make))

    @classmethod
    async def move(cls, name: str, to: VolumeKind) -> Self:
        """Have a volume that nobody uses be a directory, or a disk, with all that is in it."""
        return cls(await move_volume(name, to_disk=parse_kind(to) == "disk"))

    @classmethod
    async def find(cls, name: str) -> Self:
        """Return the volume of that name."""
        store = await open_store()
        return cls(await asyncio.to_thread(store.volumes.find, name))

    @classmethod
    async def list(cls) -> tuple[Self, ...]:
        """Return all volumes by name."""
        store = await open_store()
        return tuple(cls(each) for each in await asyncio.to_thread(store.volumes.list))

    @classmethod
    async def remove(cls, name: str) -> None:
        """Remove a volume that no sandbox uses, with all that is in it."""
        store = await open_store()
        await asyncio.to_thread(store.volumes.remove, name)
