"""Turns what a person wrote into the place that an image comes from."""

from __future__ import annotations

from pathlib import Path

from cloister.image.docker_archive import DockerArchiveSource
from cloister.image.layout import LayoutSource
from cloister.image.reference import (
    ArchiveReference,
    LayoutReference,
    Reference,
    RegistryReference,
    TarReference,
)
from cloister.image.registry import RegistrySource
from cloister.image.rootfs_tar import TarSource
from cloister.image.source import Source


def open_source(reference: Reference, spool: Path) -> Source:
    """Return the source of an image; blobs on their way are held in files in `spool`."""
    match reference:
        case RegistryReference():
            return RegistrySource(reference, spool=spool)
        case LayoutReference():
            return LayoutSource(reference)
        case ArchiveReference():
            return DockerArchiveSource(reference)
        case TarReference():
            return TarSource(reference.file)
