"""A store of a case's own, and archives and images to attack it with."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from cloister.image.manifest import machine_platform
from cloister.model import Limits
from cloister.node.stock import close_store, open_store
from cloister.store import Store
from cloister.verify.arena import Arena
from cloister.verify.case import NotApplicable
from cloister.verify.cases.elsewhere import state_in

# Plain directories, which work for everybody, hold no quota.
UNBOUNDED = Limits(disk="unlimited")
_MEDIA = "application/vnd.oci.image"
Entry = tuple[str, dict[str, Any]]


@contextlib.asynccontextmanager
async def shelter(arena: Arena) -> AsyncIterator[Store]:
    """A store for all sandboxes of the case, gone with everything in it."""
    directory = arena.canary.directory / "state"
    with state_in(directory):
        store = await open_store()
        try:
            yield store
        finally:
            _remove_everything(store)
            close_store()
            # What this process brought in, nobody else collects while it has the store open.
            with Store.open(directory) as again:
                again.collect()
    # All that is left is ours.
    shutil.rmtree(directory)


def _remove_everything(store: Store) -> None:
    for kept in store.kept.list():
        store.kept.remove(kept.name)
    for snapshot in store.snapshots.list():
        store.snapshots.remove(snapshot)
    for volume in store.volumes.list():
        store.volumes.remove(volume.name)
    for image in store.images.list():
        for name in image.names:
            store.images.unname(name)


def make_tar(entries: Iterable[Entry]) -> bytes:
    """Return a tar of names and fields of their headers, `content` and `pax` among them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, fields in entries:
            info = tarfile.TarInfo(name)
            content = fields.get("content", b"")
            info.size = fields.get("size", len(content))
            info.type = fields.get("type", tarfile.REGTYPE)
            info.mode = fields.get("mode", 0o755)
            info.linkname = fields.get("link", "")
            info.pax_headers = fields.get("pax", {})
            archive.addfile(info, io.BytesIO(content) if info.size == len(content) else None)
    return buffer.getvalue()


def shell_layer() -> bytes:
    """Return a layer with the host's bash and what it needs, and nothing else."""
    bash = shutil.which("bash")
    if bash is None or shutil.which("ldd") is None:
        raise NotApplicable("there is no bash, or no ldd, on the host to make an image of")
    listed = subprocess.run(["ldd", bash], capture_output=True, text=True, check=True).stdout
    libraries = [word for word in listed.split() if word.startswith("/")]
    entries: list[Entry] = [
        (library.lstrip("/"), {"content": Path(library).read_bytes()}) for library in libraries
    ]
    for name in ("bin/bash", "bin/sh"):
        entries.append((name, {"content": Path(bash).read_bytes()}))
    return make_tar(entries)


def write_layout(
    directory: Path,
    layers: list[bytes],
    config: dict[str, Any] | None = None,
    *,
    stored: list[bytes] | None = None,
    diff_ids: list[str] | None = None,
) -> str:
    """Write an OCI image layout and return its reference; `stored` are bytes to lie with."""
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    system, architecture = machine_platform()
    rootfs = {"type": "layers", "diff_ids": diff_ids or [digest(layer) for layer in layers]}
    document = {"os": system, "architecture": architecture, "rootfs": rootfs}
    described = json.dumps({**document, "config": config or {}}).encode()
    for layer, bytes_there in zip(layers, stored or layers, strict=True):
        (blobs / digest(layer).removeprefix("sha256:")).write_bytes(bytes_there)
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{_MEDIA}.manifest.v1+json",
            "config": _descriptor(described, "config.v1+json"),
            "layers": [_descriptor(layer, "layer.v1.tar") for layer in layers],
        }
    ).encode()
    for blob in (described, manifest):
        (blobs / digest(blob).removeprefix("sha256:")).write_bytes(blob)
    index = {"schemaVersion": 2, "manifests": [_descriptor(manifest, "manifest.v1+json")]}
    (directory / "index.json").write_text(json.dumps(index))
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return f"oci:{directory}"


def digest(data: bytes) -> str:
    """Return the name of these bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _descriptor(data: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": f"{_MEDIA}.{kind}", "digest": digest(data), "size": len(data)}
