"""Where an image comes from, as a person writes it, and what images are called here."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import RequestError
from cloister.model import quote

_HOST = re.compile(
    r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha(?:256:[0-9a-f]{64}|512:[0-9a-f]{128})")
_NAME = re.compile(r"[a-z0-9](?:[A-Za-z0-9._/:@-]{0,253}[A-Za-z0-9_])?")
_LATEST = "latest"

FORMS = (
    "write docker://HOST[:PORT]/NAME[:TAG][@DIGEST], oci:DIRECTORY[:TAG], docker-archive:FILE "
    "or tar:FILE"
)


@dataclass(frozen=True, slots=True)
class RegistryReference:
    """An image in a registry: by `tag`, or by `digest`, which wins."""

    host: str
    port: int | None
    repository: str
    tag: str | None
    digest: str | None

    @property
    def address(self) -> str:
        """Host and port as a URL has them."""
        return self.host if self.port is None else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether the registry is on this machine, where nobody listens in between."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        end = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"{self.address}/{self.repository}{end}"


@dataclass(frozen=True, slots=True)
class LayoutReference:
    """An image in a directory of the OCI's form; the only one there, unless `tag` says which."""

    directory: Path
    tag: str | None


@dataclass(frozen=True, slots=True)
class ArchiveReference:
    """An image in a file that `docker save` wrote; the only one in it, unless `tag` says which."""

    file: Path
    tag: str | None


@dataclass(frozen=True, slots=True)
class TarReference:
    """A tar of a root filesystem, compressed or not, without anything about how to run it."""

    file: Path


Reference = RegistryReference | LayoutReference | ArchiveReference | TarReference


def parse_reference(text: object) -> Reference:
    """Return what is meant. The registry must be named: there is none that is asked by default."""
    if not isinstance(text, str):
        raise RequestError(f"image is {quote(text)}; {FORMS}")
    scheme, colon, rest = text.partition(":")
    if not colon or not rest or "\0" in rest:
        raise RequestError(f"image is {quote(text)}; {FORMS}")
    match scheme:
        case "docker" if rest.startswith("//"):
            return parse_registry_reference(rest[2:])
        case "oci":
            path, tag = _split_tag(rest)
            return LayoutReference(path, tag)
        case "docker-archive":
            path, tag = _split_tag(rest)
            return ArchiveReference(path, tag)
        case "tar":
            return TarReference(Path(rest))
    raise RequestError(f"image is {quote(text)}; {FORMS}")


def parse_registry_reference(text: str) -> RegistryReference:
    """Read HOST[:PORT]/NAME[:TAG][@DIGEST]."""
    rest, at, digest = text.partition("@")
    if at and _DIGEST.fullmatch(digest) is None:
        raise RequestError(f'image is {quote(text)}; after "@" write sha256: and 64 digits')
    address, slash, path = rest.partition("/")
    found = _HOST.fullmatch(address)
    names_host = "." in address or ":" in address or address == "localhost"
    if found is None or not slash or not names_host:
        raise RequestError(
            f"image is {quote(text)}; name the registry it is in: docker://HOST/NAME:TAG"
        )
    port = None if found["port"] is None else int(found["port"])
    if port is not None and not 0 < port < 65_536:
        raise RequestError(f"image is {quote(text)}; ports are from 1 to 65535")
    repository, colon, tag = path.partition(":")
    if len(repository) > 255 or _REPOSITORY.fullmatch(repository) is None:
        raise RequestError(f"image is {quote(text)}; {quote(repository)} is no name of an image")
    if colon and _TAG.fullmatch(tag) is None:
        raise RequestError(f"image is {quote(text)}; {quote(tag)} is no tag")
    return RegistryReference(
        found["host"].lower(),
        port,
        repository,
        tag or (None if digest else _LATEST),
        digest or None,
    )


def parse_image_name(value: object) -> str:
    """Return the text as a name that an image may have here."""
    if not isinstance(value, str) or _NAME.fullmatch(value) is None or _DIGEST.fullmatch(value):
        raise RequestError(
            f'name of an image is {quote(value)}; write letters, digits and "._/:@-", '
            "beginning with a small letter or a digit"
        )
    return value


def split_pin(reference: str) -> tuple[str, str | None]:
    """Return (name, digest) of NAME@DIGEST, of a digest alone, or of a name alone."""
    if _DIGEST.fullmatch(reference):
        return "", reference
    name, at, digest = reference.rpartition("@")
    if at and _DIGEST.fullmatch(digest):
        return name, digest
    return reference, None


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its very name; no resolver is asked."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _split_tag(rest: str) -> tuple[Path, str | None]:
    path, colon, tag = rest.rpartition(":")
    if colon and path and "/" not in tag and tag:
        return Path(path), tag
    return Path(rest), None
