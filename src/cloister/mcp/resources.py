"""The sandbox's files as resources, by URIs that name their path."""

from __future__ import annotations

import base64
import mimetypes
import os
import posixpath
from urllib.parse import quote, unquote_to_bytes

import mcp_types as wire

from cloister.mcp.desk import Desk
from cloister.mcp.failure import ToolFailure
from cloister.sandbox.entries import Kind

SCHEME = "sandbox://"
TEMPLATE = "sandbox://{+path}"
MAXIMUM_BYTES = 8 * 2**20
_MAXIMUM_LISTED = 200


def link_to(path: str) -> str:
    """Return the URI of a file."""
    return SCHEME + quote(os.fsencode(path), safe="/")


def templates() -> list[wire.ResourceTemplate]:
    """Return the one form of URI there is."""
    return [
        wire.ResourceTemplate(
            name="file",
            title="A file in the sandbox",
            uri_template=TEMPLATE,
            description="Any file by its absolute path, up to 8 MiB: sandbox:///workspace/a.txt",
        )
    ]


async def listed(desk: Desk) -> list[wire.Resource]:
    """Return the files in the working directory; a sandbox is not made for that alone."""
    sandbox = desk.present
    if sandbox is None or not sandbox.is_running:
        return []
    place = sandbox.working_directory
    entries = await sandbox.files.list(place, limit=_MAXIMUM_LISTED)
    return [
        wire.Resource(
            uri=link_to(posixpath.join(place, each.name)),
            name=each.name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"),
            size=each.size,
            mime_type=_kind_of(each.name),
        )
        for each in entries
        if each.kind is Kind.FILE
    ]


async def read(desk: Desk, uri: str) -> wire.TextResourceContents | wire.BlobResourceContents:
    """Return a file's content: text where it is, else bytes."""
    path = _path_of(uri)
    sandbox = await desk.sandbox()
    found = await sandbox.files.stat(path)
    if found.kind is not Kind.FILE:
        raise ToolFailure(f"{uri} is not a regular file; only those are resources")
    data = await sandbox.files.read(path, limit=MAXIMUM_BYTES)
    kind = _kind_of(path)
    text = _as_text(data)
    if text is not None:
        return wire.TextResourceContents(uri=uri, text=text, mime_type=kind or "text/plain")
    blob = base64.b64encode(data).decode()
    return wire.BlobResourceContents(
        uri=uri, blob=blob, mime_type=kind or "application/octet-stream"
    )


def _as_text(data: bytes) -> str | None:
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _path_of(uri: str) -> str:
    if not uri.startswith(SCHEME + "/"):
        raise ToolFailure(f"a resource is {SCHEME}/ and a path; this is not: {uri[:200]!r}")
    return os.fsdecode(unquote_to_bytes(uri.removeprefix(SCHEME)))


def _kind_of(path: str) -> str | None:
    return mimetypes.guess_type(posixpath.basename(path))[0]
