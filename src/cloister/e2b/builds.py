"""Template builds that clients of E2B asked for: what they are, how far, and what they said."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloister.build.progress import BuildProgress, News
from cloister.build.template import build_template
from cloister.build.template_file import TemplateSpec, make_ready
from cloister.e2b.build_recipe import dockerfile_of, hashes_of
from cloister.e2b.refusal import CallRefused, refusal_of
from cloister.e2b.tags import keep
from cloister.errors import CloisterError
from cloister.model import Limits
from cloister.policy import Policy
from cloister.server.quotas import Quotas
from cloister.server.tenancy import Names, TenantName

_MOST_AT_ONCE = 2
_MOST_REMEMBERED = 50
_MOST_ENTRIES = 10_000
_MOST_LINE = 2000
_MOST_ARCHIVES = 500
_ARCHIVE_S = 24 * 3600.0
# No tenant is called so: their names have no underscore.
_PREFIX = "build_"


@dataclass(slots=True)
class Build:
    """One build; `status` is waiting, building, ready or error."""

    id: str
    # What it is to be called, one for each tag.
    names: tuple[str, ...]
    limits: Limits
    status: str = "waiting"
    entries: list[dict[str, Any]] = field(default_factory=list)
    reason: dict[str, Any] | None = None

    def say(self, message: str, level: str = "info", step: str | None = None) -> None:
        """Note what was said, for whoever asks."""
        if len(self.entries) < _MOST_ENTRIES:
            entry = {"timestamp": _now(), "message": message[:_MOST_LINE], "level": level}
            self.entries.append({**entry, **({} if step is None else {"step": step})})


class Builds:
    """The builds of all tenants, and the archives they copy from."""

    def __init__(self, directory: Path, quotas: Quotas) -> None:
        self._directory = directory
        self._quotas = quotas
        self._builds: dict[tuple[TenantName, str], Build] = {}
        self._turns: dict[TenantName, asyncio.Semaphore] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, tenant: TenantName, names: tuple[str, ...], limits: Limits) -> Build:
        """Remember that a template is to be built."""
        mine = [key for key in self._builds if key[0] == tenant]
        finished = [key for key in mine if self._builds[key].status in ("ready", "error")]
        if len(mine) >= _MOST_REMEMBERED:
            if not finished:
                raise CallRefused(
                    "resource_exhausted", f"{_MOST_REMEMBERED} builds are waiting; wait for one"
                )
            del self._builds[finished[0]]
        build = Build(str(uuid.uuid4()), names, limits)
        self._builds[tenant, build.id] = build
        return build

    def find(self, tenant: TenantName, id: str) -> Build:
        """Return a build of a tenant."""
        build = self._builds.get((tenant, id))
        if build is None:
            raise CallRefused("not_found", f"build {id[:64]} not found")
        return build

    def archive(self, tenant: TenantName, hash: str) -> Path:
        """Return where an archive of a tenant is, or is to be."""
        return self._directory / tenant / f"{hash}.tar"

    def make_room(self, tenant: TenantName) -> None:
        """Make the directory of a tenant's archives, without those nobody has used for a day."""
        directory = self._directory / tenant
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in directory.iterdir():
            if _is_old(path):
                path.unlink(missing_ok=True)
        for path in self._directory.glob(f"{_PREFIX}*"):
            # Of a server that was killed in the middle of a build.
            if _is_old(path):
                shutil.rmtree(path, ignore_errors=True)

    def require_room(self, tenant: TenantName, most_bytes: int) -> None:
        """Refuse archives of a tenant, those that are being sent included, past a limit."""
        sizes: list[int] = []
        for each in os.scandir(self._directory / tenant):
            # Another upload may be done with its draft meanwhile.
            with contextlib.suppress(FileNotFoundError):
                sizes.append(each.stat(follow_symlinks=False).st_size)
        if len(sizes) > _MOST_ARCHIVES or sum(sizes) > most_bytes:
            raise CallRefused(
                "resource_exhausted",
                f"{len(sizes)} archives of {sum(sizes)} bytes wait for builds; the most is "
                f"{_MOST_ARCHIVES} of {most_bytes}; they are removed a day after their last use",
                507,
            )

    def start(
        self, tenant: TenantName, build: Build, base: str, body: Mapping[str, Any], storage: str
    ) -> None:
        """Begin a build in its turn; what comes of it is asked for."""
        steps: Sequence[Mapping[str, Any]] = body.get("steps") or []
        if build.status != "waiting" or build.entries:
            raise CallRefused("already_exists", "this build was started before; ask for another")
        if not isinstance(steps, list) or not all(isinstance(each, dict) for each in steps):
            raise CallRefused("invalid_argument", "steps is not a list of objects")
        text = dockerfile_of(base, steps)
        for hash in hashes_of(steps):
            if not self.archive(tenant, hash).is_file():
                raise CallRefused("invalid_argument", f"files {hash[:12]} were not uploaded")
        build.say("the build waits for its turn", "debug")
        task = asyncio.create_task(self._run(tenant, build, text, body, storage))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(
        self, tenant: TenantName, build: Build, text: str, body: Mapping[str, Any], storage: str
    ) -> None:
        turn = self._turns.setdefault(tenant, asyncio.Semaphore(_MOST_AT_ONCE))
        async with turn:
            build.status = "building"
            self.make_room(tenant)
            directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._directory))
            promised = False
            try:
                self._quotas.reserve(tenant, build.limits)
                promised = True
                await asyncio.to_thread(self._fill, tenant, directory, text, body)
                stored = [Names(tenant).stored(name, "template") for name in build.names]
                ready = make_ready(body.get("readyCmd") or None)
                spec = TemplateSpec(
                    stored[0],
                    dockerfile=directory / "Dockerfile",
                    directory=directory,
                    start=body.get("startCmd") or (),
                    ready=ready,
                    policy=Policy(
                        profile="root", user="user", limits=build.limits, storage=storage
                    ),
                )
                fresh = bool(body.get("force"))
                told = _teller(build)
                record = await build_template(spec, use_cache=not fresh, on_progress=told)
                for other in stored[1:]:
                    await keep(record, other)
            except CloisterError as error:
                refused = refusal_of(error)
                build.say(refused.message, "error")
                build.reason = {"message": refused.message[:_MOST_LINE]}
                build.status = "error"
            except asyncio.CancelledError:
                build.status = "error"
                raise
            else:
                build.say("the template is ready")
                build.status = "ready"
            finally:
                if promised:
                    self._quotas.release(tenant, build.limits)
                shutil.rmtree(directory, ignore_errors=True)

    def _fill(
        self, tenant: TenantName, directory: Path, text: str, body: Mapping[str, Any]
    ) -> None:
        (directory / "Dockerfile").write_text(text)
        for hash in hashes_of(body.get("steps") or []):
            os.link(self.archive(tenant, hash), directory / f"{hash}.tar")


def _teller(build: Build) -> Any:
    def tell(news: BuildProgress) -> None:
        if news.news is News.STEP:
            build.say(f"step {news.index} of {news.count}: {news.text}", "debug", str(news.index))
        for line in news.output.decode("utf-8", "replace").splitlines():
            build.say("".join(c if c.isprintable() else "?" for c in line), "info", str(news.index))

    return tell


def _is_old(path: Path) -> bool:
    return time.time() - path.lstat().st_mtime > _ARCHIVE_S


def _now() -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    return f"{whole}.{int(time.time() % 1 * 1000):03d}Z"
