"""`cloister diff` and `cloister export`: exactly what a kept sandbox changed, shown or written."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloister.cli import session
from cloister.cli.changes import (
    Asked,
    to_descriptor,
    to_standard_output,
    write_archive,
    write_listing,
    write_patch,
)
from cloister.cli.gates import pass_gate
from cloister.cli.kept import compared_trees, find_kept, opened_trees, policy_of
from cloister.cli.progress import Waiting
from cloister.cli.rewind import find_snapshot
from cloister.cli.telling import note
from cloister.errors import HostError, RequestError
from cloister.model import parse_absolute_path, quote
from cloister.model.changes import escape
from cloister.policy import Effect
from cloister.sandbox import baselines
from cloister.sandbox.brought_out import readable_benches

if TYPE_CHECKING:
    from cloister.store.changes import Written

_CHUNK_BYTES = 1024 * 1024

SINCE = click.option(
    "--since",
    metavar="SNAPSHOT|image",
    help="Compare with a snapshot, a step or the image; with the copy it began with unless told.",
)


@click.command()
@click.option("--patch", "as_patch", is_flag=True, help="Show the text that changed, as git does.")
@click.option("--stat", is_flag=True, help="Show only how much changed.")
@SINCE
@click.option("--json", "as_json", is_flag=True, help="Print the changes as a JSON list.")
@click.argument("name")
@click.argument("path", default="/")
def diff(name: str, path: str, as_patch: bool, stat: bool, since: str | None, as_json: bool) -> int:
    """Show what the kept sandbox NAME changed, all of it or below PATH.

    It is compared with its image, or, if it was made with `--copy`, with what it was after that.
    Lines begin with A for added, C for changed and D for deleted, and say in what a path differs:
    content, mode, owner, link, type or extended attributes.

    For example: `cloister diff task-42 /workspace --patch | less`
    """
    if as_patch and (stat or as_json):
        raise click.UsageError("--patch excludes --stat and --json; leave one of them out")
    below = parse_absolute_path(path, "PATH")
    form = "text"
    if stat:
        form = "stat-json" if as_json else "stat"
    elif as_json:
        form = "json"
    return session.run_until_signal(lambda: _diff(name, below, since, form, as_patch))


async def _diff(name: str, below: str, since: str | None, form: str, as_patch: bool) -> int:
    async with _benches(name, since) as benches, compared_trees(name) as compared:
        asked = Asked(compared, below, benches)
        if as_patch:
            await to_standard_output(write_patch, asked, False)
        else:
            await to_standard_output(write_listing, asked, form)
    return 0


@asynccontextmanager
async def _benches(name: str, since: str | None) -> AsyncIterator[tuple[Path, ...] | None]:
    """Yield where the snapshot is that a sandbox is compared with; None for its image."""
    if since == "image":
        yield None
        return
    store, kept = await find_kept(name)
    if since is None:
        found = await asyncio.to_thread(baselines.copied, store, name)
    else:
        found = await find_snapshot(store, name, since)
        if found.image != kept.image:
            raise RequestError(f"snapshot {quote(since)} stands on another image than {name}")
    if found is None:
        yield None
        return
    async with readable_benches(store, found) as benches:
        yield benches


@click.command()
@click.option(
    "--as",
    "form",
    type=click.Choice(["patch", "tar", "oci"]),
    required=True,
    help="A patch for `git apply`, a tar of what is there now, or an image of one layer.",
)
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    help="Write to a file (oci: into a directory), and not to standard output.",
)
@click.option("--below", metavar="PATH", default="/", help="Only what is below a path inside.")
@SINCE
@click.option("--json", "as_json", is_flag=True, help="Print what was written as a JSON object.")
@click.argument("name")
def export(
    name: str, form: str, output: str | None, below: str, since: str | None, as_json: bool
) -> int:
    """Write what the kept sandbox NAME changed: what leaves it, and nothing else.

    Paths in it are relative to what --below names. A tar holds what was added and changed. The
    one layer of an image (oci, tagged NAME, for `cloister image import oci:DIRECTORY:NAME` and
    other tools) also says what was deleted. Binary files are in a patch too.

    For example: `cloister export task-42 --as patch --below /workspace -o task-42.patch`
    """
    tree = parse_absolute_path(below, "--below")
    if output is None:
        if form == "oci":
            raise click.UsageError("an image is a directory; name one with --output")
        if as_json:
            raise click.UsageError("--json needs --output: standard output has the export itself")
        if form != "patch" and session.is_terminal(1):
            raise click.UsageError("a tar is not for a terminal; name a file with --output")
    return session.run_until_signal(lambda: _export(name, form, output, tree, since, as_json))


async def _export(
    name: str, form: str, output: str | None, below: str, since: str | None, as_json: bool
) -> int:
    policy = policy_of((await find_kept(name))[1])
    is_gated = policy.gates.export is not Effect.ALLOW
    if is_gated and (output is None or form == "oci"):
        # What a person is asked about must be there whole, and not be anybody's yet.
        raise RequestError("gates.export of its policy needs --output FILE, and no oci")
    async with _benches(name, since) as benches, opened_trees(name) as (compared, ask):
        asked = Asked(compared, below, benches)

        async def gate(written: Path) -> None:
            if not is_gated:
                return
            digest, size = await asyncio.to_thread(_digest, written)
            sizes = [("form", form), ("below", below), ("bytes", str(size)), ("sha-256", digest)]
            subject = f"{name} to {Path(output or '').absolute()}"
            await pass_gate(
                *("export", policy, ask), subject=subject, content=digest, details=sizes
            )

        if output is None:
            if form == "patch":
                await to_standard_output(write_patch, asked, True)
            else:
                _tell_left_out(await to_standard_output(write_archive, asked, "plain"))
            return 0
        image: str | None = None
        written: Written | None
        with Waiting(f"writing {output}"):
            if form == "oci":
                written, image = await _write_image(Path(output), name, asked)
            else:
                written = await _write_file(Path(output), form, asked, gate)
    _tell_left_out(written)
    if as_json:
        described: dict[str, object] = {"file": output}
        if image is None:
            described["bytes"] = os.path.getsize(output)
        if written is not None:
            described |= {"entries": written.entries, "digest": image or written.digest}
            described["left_out"] = written.left_out_total
        click.echo(json.dumps(described))
    return 0


async def _write_image(target: Path, tag: str, asked: Asked) -> tuple[Written, str]:
    """Write an image whose one layer is what was changed; return its digest too."""
    from cloister.image import LayoutWriter

    writer = LayoutWriter(target)
    with tempfile.TemporaryFile(dir=target) as layer:
        written = await to_descriptor(layer.fileno(), write_archive, asked, "oci")
        layer.seek(0)
        chunks = iter(lambda: layer.read(_CHUNK_BYTES), b"")
        added = await asyncio.to_thread(writer.add_layer, chunks)
        return written, writer.add_image(tag, [added])


def _digest(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size


async def _write_file(
    target: Path, form: str, asked: Asked, gate: Callable[[Path], Awaitable[None]]
) -> Written | None:
    """Write the file whole or not at all, in the place of no device, pipe, link or directory."""
    if os.path.lexists(target) and (target.is_symlink() or not target.is_file()):
        raise RequestError(
            f"{target} is no file, and would be replaced; name another one, or leave --output out "
            "for standard output"
        )
    fresh = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise HostError(f"{target} cannot be written: {error.strerror}") from error
    try:
        try:
            if form == "patch":
                written = None
                await to_descriptor(fd, write_patch, asked, True)
            else:
                written = await to_descriptor(fd, write_archive, asked, "plain")
        finally:
            os.close(fd)
        await gate(fresh)
        fresh.rename(target)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    return written


def _tell_left_out(written: Written | None) -> None:
    if written is not None and written.left_out_total:
        path, why = written.left_out[0]
        more = f", and {written.left_out_total - 1} more" if written.left_out_total > 1 else ""
        note(f"not in the archive: {escape(path)} ({why}){more}")
