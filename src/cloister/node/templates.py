"""Templates as they are kept: one small file for each version, beside the store's records."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.errors import HostError, NotFound, RequestError
from cloister.model import parse_name, quote
from cloister.policy import ImageRoot, Policy, read_policy

if TYPE_CHECKING:
    from cloister.store import Store

_FORM = 1


@dataclass(frozen=True, slots=True)
class Ready:
    """When a sandbox of a template is ready: a command succeeds, or a port takes connections."""

    command: tuple[str, ...] = ()
    port: int | None = None
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class TemplateRecord:
    """One version of a template; `image` is the digest of what its steps made."""

    name: str
    version: int
    image: str
    policy: Policy
    start: tuple[str, ...]
    ready: Ready | None
    steps: tuple[str, ...]
    base: str
    created_at: float

    @property
    def reference(self) -> str:
        """Its name with its version."""
        return f"{self.name}:{self.version}"

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        ready: dict[str, Any] | None = None
        if self.ready is not None:
            ready = {"command": list(self.ready.command), "port": self.ready.port}
            ready["timeout_s"] = self.ready.timeout_s
        policy = self.policy.as_dict()
        if not self.policy.storage_is_stated:
            # Where its sandboxes have their files is left to whoever starts them.
            del policy["storage"]
        if not self.policy.limits.disk_is_stated:
            # And so is whether the usual limit of a disk can be held there.
            del policy["limits"]["disk"]
        return {
            "form": _FORM,
            "name": self.name,
            "version": self.version,
            "image": self.image,
            "policy": policy,
            "start": list(self.start),
            "ready": ready,
            "steps": list(self.steps),
            "base": self.base,
            "created_at": self.created_at,
        }


def image_name(name: str, version: int) -> str:
    """Return what the image of a version is called, so that it is kept."""
    return f"template/{name}:{version}"


def split_reference(reference: str) -> tuple[str, int | None]:
    """Return (name, version) of NAME or NAME:VERSION."""
    name, colon, version = reference.partition(":")
    parse_name(name, "template")
    if not colon:
        return name, None
    if not version.isdecimal() or not version.isascii() or len(version) > 9:
        raise RequestError(f"template is {quote(reference)}; write NAME or NAME:VERSION")
    return name, int(version)


class Templates:
    """The templates of a store. Its calls block, for no longer than a look at a few files."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._directory = store.directory / "templates"

    def find(self, reference: str) -> TemplateRecord:
        """Return a template by NAME, the newest version, or NAME:VERSION."""
        name, version = split_reference(reference)
        versions = self._versions(name)
        wanted = max(versions, default=None) if version is None else version
        if wanted is None or wanted not in versions:
            raise NotFound(
                f"no template {quote(reference)}; make one with `cloister template build`",
                what=reference,
            )
        return _read(self._path(name, wanted))

    def all(self) -> list[TemplateRecord]:
        """Return all versions of all templates that can still be started, by name."""
        found: list[TemplateRecord] = []
        for name in sorted(path.name for path in self._directory.glob("*") if path.is_dir()):
            for version in sorted(self._versions(name)):
                with contextlib.suppress(NotFound):
                    record = _read(self._path(name, version))
                    self._store.images.find(record.image)
                    found.append(record)
        return found

    def texts(self) -> list[str]:
        """Return every version as it is kept, whether or not its image is here."""
        return [path.read_text() for path in sorted(self._directory.glob("*/*.json"))]

    def put_back(self, text: str) -> bool:
        """Keep a version as it was kept before, under its own number; False if there is one."""
        record = _parse(text, Path("a template of a backup"))
        directory = self._directory / parse_name(record.name, "template")
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _write(self._path(record.name, record.version), text):
            return False
        with contextlib.suppress(NotFound):
            self._store.images.name(image_name(record.name, record.version), record.image)
        return True

    def put(
        self,
        name: str,
        image: str,
        policy: Policy,
        *,
        start: tuple[str, ...],
        ready: Ready | None,
        steps: tuple[str, ...],
        base: str,
    ) -> TemplateRecord:
        """Keep a new version. The images of earlier ones are left to the next `collect`."""
        directory = self._directory / parse_name(name, "template")
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        earlier = self._versions(name)
        version = max(earlier, default=0) + 1
        while True:
            record = TemplateRecord(
                name,
                version,
                image,
                policy.replace(root=ImageRoot(image)),
                start,
                ready,
                steps,
                base,
                time.time(),
            )
            if _write(self._path(name, version), json.dumps(record.as_dict())):
                break
            # Somebody else was first with this number.
            version += 1
        self._store.images.name(image_name(name, version), image)
        for each in earlier:
            self._unname(name, each)
        return record

    def remove(self, reference: str) -> list[str]:
        """Remove one version, or all of a name, and return which."""
        name, version = split_reference(reference)
        gone = self._versions(name) if version is None else [self.find(reference).version]
        if not gone:
            raise NotFound(f"no template {quote(reference)}", what=reference)
        for each in gone:
            self._path(name, each).unlink(missing_ok=True)
            self._unname(name, each)
        with contextlib.suppress(OSError):
            (self._directory / name).rmdir()
        return [f"{name}:{each}" for each in gone]

    def _unname(self, name: str, version: int) -> None:
        with contextlib.suppress(NotFound):
            self._store.images.unname(image_name(name, version))

    def _versions(self, name: str) -> list[int]:
        return sorted(self._numbers(self._directory / name))

    def _numbers(self, directory: Path) -> Iterator[int]:
        for path in directory.glob("*.json"):
            if path.stem.isdecimal():
                yield int(path.stem)

    def _path(self, name: str, version: int) -> Path:
        return self._directory / name / f"{version}.json"


def _write(path: Path, text: str) -> bool:
    """Write a file that survives a power cut; False where one is there already."""
    draft = path.with_suffix(f".{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(draft)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return True


def _read(path: Path) -> TemplateRecord:
    try:
        return _parse(path.read_text(), path)
    except FileNotFoundError:
        raise NotFound(f"template {quote(path.stem)} was removed", what=path.stem) from None


@lru_cache(maxsize=64)
def _parse(text: str, path: Path) -> TemplateRecord:
    """Read a record; reading a policy takes a third of what a sandbox takes to start."""
    try:
        found = json.loads(text)
        if found["form"] != _FORM:
            raise HostError(f"{path} is of form {found['form']}; use the newer program")
        ready = found["ready"]
        return TemplateRecord(
            name=found["name"],
            version=found["version"],
            image=found["image"],
            policy=read_policy(found["policy"], str(path)),
            start=tuple(found["start"]),
            ready=None
            if ready is None
            else Ready(tuple(ready["command"]), ready["port"], ready["timeout_s"]),
            steps=tuple(found["steps"]),
            base=found["base"],
            created_at=found["created_at"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise HostError(f"{path} cannot be read: {error}; build the template again") from error
