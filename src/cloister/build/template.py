"""Templates: steps are run once, and every sandbox of one starts as fast as an empty one."""

from __future__ import annotations

import asyncio

from cloister.build.building import BuildOptions, build_image
from cloister.build.cache import Cache, step_key
from cloister.build.draft import DEFAULT_SHELL, Draft, put_image
from cloister.build.progress import BuildProgress, News, OnBuildProgress
from cloister.build.spool import sweep_spool
from cloister.build.steps import placed
from cloister.build.template_file import TemplateSpec
from cloister.build.workshop import Workshop, build_limits, build_policy
from cloister.errors import CloisterError
from cloister.image import Image, Library
from cloister.model import User
from cloister.node import open_store
from cloister.node.templates import TemplateRecord, Templates
from cloister.policy import ImageRoot, Policy, Storage
from cloister.sandbox import Sandbox
from cloister.sandbox.templated import launch
from cloister.store import Store


async def build_template(
    spec: TemplateSpec, *, use_cache: bool = True, on_progress: OnBuildProgress | None = None
) -> TemplateRecord:
    """Run the steps, see that it gets ready, and keep it as a new version.

    The steps run under the template's own policy, as root and without its host directories and
    volumes.
    """
    tell = on_progress or (lambda _: None)
    store = await open_store()
    await asyncio.to_thread(sweep_spool, store)
    steps_policy = _steps_policy(spec.policy, store)
    base = await _base(spec, store, steps_policy, use_cache, tell)
    draft = await _follow(spec, Draft.on(base), store, steps_policy, use_cache, tell)
    image = await put_image(draft, store, origin=f"template:{spec.name}")
    record = TemplateRecord(
        spec.name,
        0,
        image.digest,
        spec.policy.replace(root=ImageRoot(image.digest)),
        spec.start,
        spec.ready,
        spec.steps,
        base.digest,
        0.0,
    )
    if spec.start or spec.ready is not None:
        count = _count(spec)
        tell(BuildProgress(News.STEP, count, count, "wait until it is ready"))
        async with Sandbox(record.policy, label="template") as sandbox:
            await launch(sandbox, record)
    return await asyncio.to_thread(_put, store, record)


def _put(store: Store, record: TemplateRecord) -> TemplateRecord:
    return Templates(store).put(
        record.name,
        record.image,
        record.policy,
        start=record.start,
        ready=record.ready,
        steps=record.steps,
        base=record.base,
    )


def _count(spec: TemplateSpec) -> int:
    return len(spec.steps) + (1 if spec.start or spec.ready is not None else 0)


def _steps_policy(policy: Policy, store: Store) -> Policy:
    limits = build_limits(store)
    bare = policy.replace(mounts=(), volumes=(), storage=Storage.DISK, limits=limits)
    return build_policy(bare, store)


async def _base(
    spec: TemplateSpec, store: Store, policy: Policy, use_cache: bool, tell: OnBuildProgress
) -> Image:
    if spec.dockerfile is None:
        return await asyncio.to_thread(Library(store).find, spec.image or "")
    return await build_image(
        spec.directory or spec.dockerfile.parent,
        None,
        dockerfile=spec.dockerfile,
        options=BuildOptions({}, policy=policy, use_cache=use_cache),
        on_progress=tell,
    )


async def _follow(
    spec: TemplateSpec,
    draft: Draft,
    store: Store,
    policy: Policy,
    use_cache: bool,
    tell: OnBuildProgress,
) -> Draft:
    """Run the steps in one sandbox, one after the other: what they made is one layer."""
    if not spec.steps:
        return draft
    count, cache = _count(spec), Cache(store)
    facts = [draft.layers, spec.steps, draft.env, draft.workdir, policy.digest()]
    key = step_key(["template", *facts])
    known, made = await asyncio.to_thread(cache.find, key) if use_cache else (False, None)
    if known:
        tell(BuildProgress(News.CACHED, len(spec.steps), count))
        return draft.with_layer(made)
    async with Workshop(policy, store, draft.base, draft.layers) as workshop:
        for index, line in enumerate(spec.steps, 1):
            tell(BuildProgress(News.STEP, index, count, line.splitlines()[0] if line else ""))

            def say(output: bytes, index: int = index) -> None:
                tell(BuildProgress(News.OUTPUT, index, count, output=output))

            try:
                # Steps install things: they are root's, whoever the image's programs run as.
                await workshop.perform(
                    [*DEFAULT_SHELL, line],
                    cwd=draft.workdir,
                    env=draft.env,
                    user=User(0, 0),
                    say=say,
                )
            except CloisterError as error:
                raise placed(error, f"step {index}") from error
            tell(BuildProgress(News.DONE, index, count))
        made = await workshop.keep()
    await asyncio.to_thread(cache.put, key, None if made is None else made[0])
    return draft.with_layer(made)
