"""Debian bases: mmdebstrap puts the packages together, and its archive becomes an image."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloister.build.draft import Draft, put_image
from cloister.build.outsider import Outsider, outsider
from cloister.build.progress import BuildProgress, News, OnBuildProgress
from cloister.build.sources_list import find_sources
from cloister.build.spool import spool_file, store_layer, sweep_spool
from cloister.errors import Exhausted, HostError, RequestError, Unsupported
from cloister.image import Image, parse_image_name
from cloister.model import format_bytes, quote
from cloister.node import open_store
from cloister.store import as_owner

# Of "extract" and "custom" nothing is installed but what is named; "extract" runs no scripts.
VARIANTS = ("minbase", "essential", "apt", "buildd", "important", "standard", "custom", "extract")
_SUITE = re.compile(r"[a-z][a-z0-9-]{0,63}")
# A name, perhaps with its version; a path or a pattern of apt's is neither.
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]{0,127}(?:=[A-Za-z0-9][A-Za-z0-9.+:~-]{0,127})?")
_MIRROR = re.compile(r"https?://[!-~]{1,255}")
_MAXIMUM_PACKAGES = 1000
_MAXIMUM_BYTES = 32 * 2**30
_WALL_S = 3600.0
_PATIENCE_S = 10.0
_CHUNK_BYTES = 2**20
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PASSED_ON = ("http_proxy", "https_proxy", "no_proxy")


@dataclass(frozen=True, slots=True, init=False)
class DebianRequest:
    """Which release, with which packages beside the necessary ones, and from where."""

    suite: str
    packages: tuple[str, ...]
    variant: str
    mirror: str | None

    def __init__(
        self,
        suite: str,
        packages: Sequence[str] = (),
        *,
        variant: str = "minbase",
        mirror: str | None = None,
    ) -> None:
        if _SUITE.fullmatch(suite) is None:
            raise RequestError(f"debian is {quote(suite)}; write a release such as bookworm")
        for package in packages:
            if _PACKAGE.fullmatch(package) is None:
                raise RequestError(f"include has {quote(package)}; write names of packages")
        if len(packages) > _MAXIMUM_PACKAGES:
            raise RequestError(
                f"include has {len(packages)} packages; the most is {_MAXIMUM_PACKAGES}"
            )
        if variant not in VARIANTS:
            raise RequestError(f"variant is {quote(variant)}; it may be {', '.join(VARIANTS)}")
        if mirror is not None and _MIRROR.fullmatch(mirror) is None:
            raise RequestError(f"mirror is {quote(mirror)}; write a URL")
        object.__setattr__(self, "suite", suite)
        object.__setattr__(self, "packages", tuple(dict.fromkeys(packages)))
        object.__setattr__(self, "variant", variant)
        object.__setattr__(self, "mirror", mirror)


async def build_debian(
    request: DebianRequest, name: str | None, *, on_progress: OnBuildProgress | None = None
) -> Image:
    """Build an image of Debian packages, from where the host's apt has its own.

    Packages run scripts when they are installed: they run as an unprivileged user in namespaces
    of their own, and what comes of it is unpacked like any layer.
    """
    if name is not None:
        parse_image_name(name)
    program = shutil.which("mmdebstrap", path=_PATH)
    if program is None:
        raise Unsupported("mmdebstrap is not installed; run `apt install mmdebstrap`")
    tell = on_progress or (lambda _: None)
    tell(BuildProgress(News.STEP, 1, 2, f"debian {request.suite}: {_words(request)}"))
    store = await open_store()
    await asyncio.to_thread(sweep_spool, store)
    async with _workplace(request) as (who, place):
        command = [program, *_arguments(request, place / "sources")]
        with spool_file(store) as spool:
            digest = await _run(who, command, place, spool, tell)
            tell(BuildProgress(News.STEP, 2, 2, "unpacking"))
            facts = await store_layer(store, spool, digest)
    draft = Draft("", (digest,), facts.bytes, cmd=("/bin/bash",), notes=_notes(facts.devices))
    image = await put_image(draft, store, origin=f"debian:{request.suite}", name=name)
    tell(BuildProgress(News.DONE, 2, 2))
    return image


def _words(request: DebianRequest) -> str:
    more = f" and {', '.join(request.packages)}" if request.packages else ""
    return f"{request.variant}{more}"


def _notes(devices: int) -> tuple[str, ...]:
    return (f"{devices} devices were left out",) if devices else ()


def _arguments(request: DebianRequest, sources: Path) -> list[str]:
    include = [f"--include={','.join(request.packages)}"] if request.packages else []
    return [
        "--mode=unshare",
        "--format=tar",
        f"--variant={request.variant}",
        *include,
        request.suite,
        "-",
        str(sources) if request.mirror is None else request.mirror,
    ]


@contextlib.asynccontextmanager
async def _workplace(request: DebianRequest) -> AsyncIterator[tuple[Outsider, Path]]:
    """Make a directory that whoever does the work may use, and remove all of it afterwards."""
    sources = (
        "" if request.mirror is not None else await asyncio.to_thread(find_sources, request.suite)
    )
    with outsider() as who:
        place = Path(tempfile.mkdtemp(prefix="cloister-debian-"))
        try:
            place.chmod(0o755)
            # They may name a mirror with its password: nobody else on the host reads them.
            (place / "sources").touch(mode=0o600)
            (place / "sources").write_text(sources)
            who.own(place / "sources")
            (place / "tmp").mkdir()
            who.own(place / "tmp")
            yield who, place
        finally:
            await asyncio.shield(asyncio.to_thread(as_owner, shutil.rmtree, str(place)))


async def _run(
    who: Outsider, command: list[str], place: Path, spool: Path, tell: OnBuildProgress
) -> str:
    """Run it, write what it makes into `spool`, and return the digest of that."""
    environment = {"PATH": _PATH, "HOME": "/", "TMPDIR": str(place / "tmp")}
    environment |= {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
    process = await who.start(command, environment)
    tail: list[str] = []
    listening = asyncio.create_task(_listen(process, tail, tell))
    try:
        async with asyncio.timeout(_WALL_S):
            digest = await _receive(process, spool)
            await listening
            code = await process.wait()
    except TimeoutError:
        raise Exhausted(
            f"mmdebstrap was not done within {_WALL_S:g} s and was ended", limit="lifetime"
        ) from None
    finally:
        await asyncio.shield(_end(process))
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    if code != 0:
        raise HostError(
            f"mmdebstrap did not succeed, exit {code}; it said last: {'; '.join(tail[-6:])}"
        )
    return digest


async def _receive(process: asyncio.subprocess.Process, spool: Path) -> str:
    if process.stdout is None:
        raise HostError("mmdebstrap was started without a pipe; report this")
    digest = hashlib.sha256()
    size_bytes = 0
    with open(spool, "wb") as file:
        while chunk := await process.stdout.read(_CHUNK_BYTES):
            size_bytes += len(chunk)
            if size_bytes > _MAXIMUM_BYTES:
                raise Exhausted(
                    f"the base has more than {format_bytes(_MAXIMUM_BYTES)}", limit="disk"
                )
            await asyncio.to_thread(_write, file.fileno(), chunk)
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def _write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


async def _listen(
    process: asyncio.subprocess.Process, tail: list[str], tell: OnBuildProgress
) -> None:
    if process.stderr is None:
        return
    while chunk := await process.stderr.read(_CHUNK_BYTES):
        tell(BuildProgress(News.OUTPUT, 1, 2, output=chunk))
        for line in chunk.decode("utf-8", "replace").splitlines():
            tail.append("".join(c if c.isprintable() else "?" for c in line[:300]))
        del tail[:-20]


async def _end(process: asyncio.subprocess.Process) -> None:
    """End what still runs: asked first, because it has mounts and files to take away."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
