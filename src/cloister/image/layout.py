"""Images in a directory of the OCI's form: `index.json`, and blobs by their digests."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from cloister.errors import ImageRefused, NotFound
from cloister.image.blobs import resolve_blobs
from cloister.image.document import MAXIMUM_DOCUMENT_BYTES
from cloister.image.manifest import Descriptor, Index, IndexEntry, parse_manifest
from cloister.image.reference import LayoutReference
from cloister.image.source import Resolved, Tick
from cloister.image.streams import CHUNK_BYTES
from cloister.model import quote


class LayoutSource:
    """One image of such a directory."""

    def __init__(self, reference: LayoutReference) -> None:
        self._reference = reference

    @property
    def origin(self) -> str:
        """Where that is."""
        tag = "" if self._reference.tag is None else f":{self._reference.tag}"
        return f"oci:{self._reference.directory.absolute()}{tag}"

    def resolve(self, tick: Tick) -> Resolved:
        """Find the image."""
        blob = self._choose().descriptor
        if len(self._manifest(blob.digest)[0]) != blob.size_bytes:
            raise ImageRefused(f"the manifest is another than index.json says: {blob.digest}")
        return resolve_blobs(blob.digest, blob.digest, self._manifest, self._blob, tick)

    def close(self) -> None:
        """Nothing stays open."""

    def _choose(self) -> IndexEntry:
        with self._open("index.json") as file:
            index = parse_manifest(_whole(file), None, "index.json")
        if not isinstance(index, Index):
            raise ImageRefused(f"{self._reference.directory}/index.json is no list of images")
        tag = self._reference.tag
        matching = [entry for entry in index.entries if tag is None or entry.name == tag]
        if len(matching) == 1:
            return matching[0]
        there = ", ".join(quote(entry.name) for entry in index.entries[:8] if entry.name)
        raise NotFound(
            f"{self._reference.directory} has {len(matching)} images "
            f"{'' if tag is None else f'called {quote(tag)}'}; its tags are {there or 'none'}",
            what=self.origin,
        )

    def _manifest(self, digest: str) -> tuple[bytes, str | None]:
        with self._open(_blob_path(digest)) as file:
            return _whole(file), None

    def _blob(self, blob: Descriptor, tick: Tick) -> Iterator[bytes]:
        with self._open(_blob_path(blob.digest)) as file:
            while chunk := file.read(CHUNK_BYTES):
                tick(len(chunk))
                yield chunk

    def _open(self, name: str) -> BinaryIO:
        path = self._reference.directory / name
        return open_file(path)


def open_file(path: Path) -> BinaryIO:
    """Open a file that somebody else may have put there: no link, no pipe, no device."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise NotFound(f"{path} does not exist", what=str(path)) from None
    except OSError as error:
        raise ImageRefused(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ImageRefused(f"{path} is no file")
    return open(descriptor, "rb")


def _whole(file: BinaryIO) -> bytes:
    # One byte more than is allowed, so that what is too long is seen to be.
    return file.read(MAXIMUM_DOCUMENT_BYTES + 1)


def _blob_path(digest: str) -> str:
    algorithm, _, name = digest.partition(":")
    return f"blobs/{algorithm}/{name}"
