"""What a sandbox of a server changed: listed, and brought here as a patch or a tar."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

import click

from cloister.cli import outlet, session
from cloister.cli.changes import listing
from cloister.cli.ledger import emit
from cloister.cli.progress import Waiting
from cloister.cli.served.place import awake, require
from cloister.errors import RequestError
from cloister.model import parse_absolute_path

_PIECE_BYTES = 1024 * 1024


async def diff(
    name: str, path: str, as_patch: bool, stat: bool, since: str | None, as_json: bool
) -> int:
    """Show what a kept sandbox changed."""
    if as_patch and (stat or as_json):
        raise click.UsageError("--patch excludes --stat and --json; leave one of them out")
    below = parse_absolute_path(path, "PATH")
    async with awake(await require(name)) as sandbox:
        if as_patch:
            await _show(sandbox.export("patch", below, _since(since)))
            return 0
        changes = await sandbox.diff(below, since=_since(since))
    form = ("stat-json" if as_json else "stat") if stat else "json" if as_json else "text"
    emit(line.rstrip("\n") for line in listing(iter(changes), form))
    return 0


async def export(
    name: str, form: str, output: str | None, below: str, since: str | None, as_json: bool
) -> int:
    """Write what a kept sandbox changed."""
    tree = parse_absolute_path(below, "--below")
    if output is None:
        if form == "oci":
            raise click.UsageError("an image is a directory; name one with --output")
        if as_json:
            raise click.UsageError("--json needs --output: standard output has the export itself")
        if form != "patch" and session.is_terminal(1):
            raise click.UsageError("a tar is not for a terminal; name a file with --output")
    described: dict[str, object] = {"file": output}
    async with awake(await require(name)) as sandbox:
        chunks = sandbox.export("layer" if form == "oci" else form, tree, _since(since))
        if output is None:
            await _show(chunks)
            return 0
        with Waiting(f"writing {output}"):
            if form == "oci":
                described["digest"] = await _write_image(Path(output), name, chunks)
            else:
                described["bytes"] = await _write(Path(output), chunks)
    if as_json:
        click.echo(json.dumps(described))
    return 0


async def _write_image(target: Path, tag: str, chunks: AsyncGenerator[bytes, None]) -> str:
    """Write an image whose one layer is what was changed; return its digest."""
    from cloister.image import LayoutWriter

    writer = LayoutWriter(target)
    with tempfile.TemporaryFile(dir=target) as layer:
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                await asyncio.to_thread(layer.write, chunk)
        layer.seek(0)
        pieces = iter(lambda: layer.read(_PIECE_BYTES), b"")
        added = await asyncio.to_thread(writer.add_layer, pieces)
        return writer.add_image(tag, [added])


def _since(text: str | None) -> str | None:
    # Since the image is what a server compares with unless it is told.
    return None if text == "image" else text


async def _show(chunks: AsyncGenerator[bytes, None]) -> None:
    async with contextlib.aclosing(chunks):
        await outlet.drain(_Coming(chunks), 1, neutral=session.is_terminal(1))


class _Coming:
    """An answer as something that can be drained."""

    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        self._chunks = chunks

    async def read(self) -> bytes:
        async for chunk in self._chunks:
            if chunk:
                return chunk
        return b""

    def close(self) -> None:
        """Nothing to do: whoever made it closes it."""


async def _write(target: Path, chunks: AsyncGenerator[bytes, None]) -> int:
    """Write a file whole or not at all; return its size."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    size = 0
    try:
        with partial.open("xb") as file:
            async with contextlib.aclosing(chunks):
                async for chunk in chunks:
                    size += file.write(chunk)
        partial.replace(target)
    except OSError as error:
        raise RequestError(f"{target} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    return size
