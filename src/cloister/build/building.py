"""Builds an image from a Dockerfile: each step in a sandbox, each result a layer of the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cloister.build.cache import Cache
from cloister.build.contents import SourceTree, read_ignore
from cloister.build.dockerfile import MAXIMUM_BYTES
from cloister.build.draft import Draft, put_image
from cloister.build.instructions import Arg, From, Noted
from cloister.build.progress import BuildProgress, News, OnBuildProgress
from cloister.build.recipe import Recipe, Stage, parse_recipe
from cloister.build.scope import Scope
from cloister.build.spool import spool_file, store_layer, sweep_spool
from cloister.build.steps import Steps, Surroundings
from cloister.build.workshop import build_policy
from cloister.errors import NotFound, RequestError
from cloister.image import Image, Library, parse_image_name
from cloister.image.blobs import digest_of
from cloister.image.manifest import machine_platform
from cloister.model import quote
from cloister.node import open_store
from cloister.policy import Policy
from cloister.policy.fields import nearest
from cloister.store import Store
from cloister.store.changes.tar_header import trailer

_SCRATCH = "scratch"


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How to build: values for ARG, the stage to end with, the steps' policy, and the cache."""

    arguments: Mapping[str, str]
    target: str | None = None
    policy: Policy | None = None
    use_cache: bool = True


async def build_image(
    context: Path,
    name: str | None,
    *,
    dockerfile: Path | None = None,
    options: BuildOptions,
    on_progress: OnBuildProgress | None = None,
) -> Image:
    """Build what a Dockerfile says, and give the image a name.

    Nothing of the Dockerfile runs on the host, and nothing outside of `context` can be copied.
    """
    if name is not None:
        parse_image_name(name)
    file = context / "Dockerfile" if dockerfile is None else dockerfile
    recipe = parse_recipe(_read(file), file.name)
    store = await open_store()
    policy = build_policy(options.policy, store)
    with SourceTree(context, read_ignore(context, file)) as opened:
        await asyncio.to_thread(sweep_spool, store)
        cache = Cache(store)
        await asyncio.to_thread(cache.prune)
        surroundings = Surroundings(store, opened, policy, cache, options.use_cache)
        build = _Build(recipe, options, surroundings, on_progress or (lambda _: None))
        draft = await build.run()
    return await put_image(draft, store, origin=f"build:{file.absolute()}", name=name)


def _read(file: Path) -> bytes:
    try:
        with open(file, "rb") as opened:
            return opened.read(MAXIMUM_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"{file} does not exist; name it with -f", what=str(file)) from None
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror}") from error


class _Build:
    def __init__(
        self,
        recipe: Recipe,
        options: BuildOptions,
        surroundings: Surroundings,
        tell: OnBuildProgress,
    ) -> None:
        self._options = options
        self._surroundings = surroundings
        self._tell = tell
        self._stages = _needed(recipe, options.target)
        self._globals = _global_arguments(recipe, options.arguments)
        self._built: dict[str, Draft] = {}
        self._index = 0
        self._count = sum(1 + len(stage.steps) for _, stage in self._stages)
        _require_declared(recipe, options.arguments)

    async def run(self) -> Draft:
        draft = None
        for number, stage in self._stages:
            draft = await self._stage(stage)
            self._built[str(number)] = draft
            if stage.start.stage is not None:
                self._built[stage.start.stage] = draft
        if draft is None:
            raise RequestError("the Dockerfile has no stage")
        return draft

    async def _stage(self, stage: Stage) -> Draft:
        start = stage.start
        self._announce(f"FROM {start.at.text}")
        scope = Scope(start.at.escape, self._globals, self._options.arguments)
        image = scope.expand(start.at, start.image, self._globals)
        draft = await self._base(start, image)
        for note in start.notes:
            self._note(note)
        steps = Steps(self._surroundings, scope, self._note, self._say, self._built)
        for step in stage.steps:
            begun = time.monotonic()
            self._announce(f"{step.at.name} {step.at.text}")
            if isinstance(step, Noted):
                self._note(f"{step.at.name} is ignored: {step.words}")
                continue
            draft, cached = await steps.follow(step, draft)
            news = News.CACHED if cached else News.DONE
            elapsed_s = time.monotonic() - begun
            self._tell(BuildProgress(news, self._index, self._count, elapsed_s=elapsed_s))
        return draft

    async def _base(self, start: From, image: str) -> Draft:
        store = self._surroundings.store
        if image == _SCRATCH:
            return await _nothing(store)
        if image.lower() in self._built and not image.isdecimal():
            return self._built[image.lower()]
        try:
            return Draft.on(await asyncio.to_thread(Library(store).find, image))
        except NotFound as error:
            raise NotFound(f"{start.at.place}: {error}", what=image) from None

    def _announce(self, text: str) -> None:
        self._index += 1
        first = text.splitlines()[0] if text else ""
        self._tell(BuildProgress(News.STEP, self._index, self._count, text=first))

    def _note(self, text: str) -> None:
        self._tell(BuildProgress(News.NOTE, self._index, self._count, text=text))

    def _say(self, output: bytes) -> None:
        self._tell(BuildProgress(News.OUTPUT, self._index, self._count, output=output))


async def _nothing(store: Store) -> Draft:
    digest = digest_of(trailer())
    with spool_file(store) as spool:
        spool.write_bytes(trailer())
        await store_layer(store, spool, digest)
    return Draft.on(await put_image(Draft("", (digest,)), store, origin=_SCRATCH))


def _needed(recipe: Recipe, target: str | None) -> list[tuple[int, Stage]]:
    """Return the stages up to the one that is wanted, without those that nothing of it names."""
    last = len(recipe.stages) - 1
    if target is not None:
        names = [stage.start.stage for stage in recipe.stages]
        wanted = target.lower()
        if wanted.isdecimal() and int(wanted) <= last:
            last = int(wanted)
        elif wanted in names:
            last = names.index(wanted)
        else:
            near = nearest(wanted, [name for name in names if name])
            meant = f'; did you mean "{near}"?' if near else ""
            raise NotFound(f"no stage is called {quote(target)}{meant}", what=target)
    needed = {last}
    for number in range(last, -1, -1):
        if number not in needed:
            continue
        for name in _names_in(recipe.stages[number]):
            for earlier in range(number):
                if name in (str(earlier), recipe.stages[earlier].start.stage) or "$" in name:
                    needed.add(earlier)
    return [(number, recipe.stages[number]) for number in sorted(needed)]


def _names_in(stage: Stage) -> list[str]:
    origins = [getattr(step, "origin", None) for step in stage.steps]
    return [stage.start.image.lower(), *(origin.lower() for origin in origins if origin)]


def _global_arguments(recipe: Recipe, given: Mapping[str, str]) -> dict[str, str]:
    values = _platform_arguments()
    for instruction in recipe.arguments:
        Scope(instruction.at.escape, {}, given).declare(instruction, values)
    return values


def _platform_arguments() -> dict[str, str]:
    """Return what everybody's Dockerfiles may ask of the machine; images here are for this one."""
    system, architecture = machine_platform()
    facts = {"OS": system, "ARCH": architecture, "PLATFORM": f"{system}/{architecture}"}
    return {f"{side}{name}": value for side in ("TARGET", "BUILD") for name, value in facts.items()}


def _require_declared(recipe: Recipe, given: Mapping[str, str]) -> None:
    instructions = [*recipe.arguments, *(step for stage in recipe.stages for step in stage.steps)]
    declared = {
        name for each in instructions if isinstance(each, Arg) for name, _ in each.variables
    }
    for name in given:
        if name not in declared:
            near = nearest(name, declared)
            meant = f'; did you mean "{near}"?' if near else ""
            raise RequestError(f"no ARG is called {quote(name)} in the Dockerfile{meant}")
