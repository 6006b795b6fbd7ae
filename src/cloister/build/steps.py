"""What each instruction does to the image that is being built."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from cloister.build.cache import Cache, step_key
from cloister.build.contents import SourceTree
from cloister.build.copying import Cargo, Item, bring, digest_items, find_items
from cloister.build.draft import Draft, user_of
from cloister.build.instructions import Arg, Copy, Instruction, Pairs, Program, Run, Setting
from cloister.build.origins import taken_from
from cloister.build.scope import Scope
from cloister.build.shipment import Manner
from cloister.build.workshop import Say, Workshop
from cloister.errors import CloisterError, RequestError
from cloister.image import LayerFacts, Library, parse_config
from cloister.image.accounts import find_user
from cloister.model import User
from cloister.policy import Policy
from cloister.store import Store

Made = tuple[str, LayerFacts] | None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all steps of a build share."""

    store: Store
    context: SourceTree | None
    policy: Policy
    cache: Cache
    use_cache: bool


class Steps:
    """Follows the instructions of one stage, one after the other."""

    def __init__(
        self,
        surroundings: Surroundings,
        scope: Scope,
        note: Callable[[str], None],
        say: Say,
        stages: Mapping[str, Draft],
    ) -> None:
        self._around = surroundings
        self._scope = scope
        self._stages = stages
        self._has_own_cmd = False
        self._note = note
        self._say = say

    async def follow(self, step: Instruction, draft: Draft) -> tuple[Draft, bool]:
        """Return the draft after a step, and whether the step had been done before."""
        try:
            match step:
                case Run():
                    return await self._run(step, draft)
                case Copy():
                    return await self._copy(step, draft)
                case Setting() if step.at.name == "WORKDIR":
                    return await self._workdir(step, draft)
        except CloisterError as error:
            raise placed(error, step.at.place) from error
        return self._settle(step, draft), False

    def _settle(self, step: Instruction, draft: Draft) -> Draft:
        """Follow an instruction that touches no file."""
        match step:
            case Arg():
                self._scope.declare(step, self._scope.arguments, draft.env)
            case Pairs():
                # All of them see what was before the first.
                seen = self._scope.of(draft.env)
                values = {
                    self._scope.expand(step.at, name, seen): self._scope.expand(step.at, text, seen)
                    for name, text in step.pairs
                }
                if step.at.name == "ENV":
                    return replace(draft, env={**draft.env, **values})
                return replace(draft, labels={**draft.labels, **values})
            case Setting():
                return self._user(step, draft)
            case Program() if step.at.name == "SHELL":
                return replace(draft, shell=tuple(step.command))
            case Program():
                words = step.command
                argv = (*draft.shell, words) if isinstance(words, str) else words
                if step.at.name == "CMD":
                    self._has_own_cmd = True
                    return replace(draft, cmd=argv)
                # A CMD of an image below was meant for the entrypoint of that image.
                cmd = draft.cmd if self._has_own_cmd else ()
                return replace(draft, entrypoint=argv, cmd=cmd)
        return draft

    def _user(self, step: Setting, draft: Draft) -> Draft:
        text = self._scope.expand(step.at, step.value, self._scope.of(draft.env))
        changed = replace(draft, user=text)
        try:
            user_of(changed, self._around.store)
        except CloisterError as error:
            raise placed(error, step.at.place) from error
        return changed

    async def _run(self, step: Run, draft: Draft) -> tuple[Draft, bool]:
        words = step.command
        argv = [*draft.shell, words] if isinstance(words, str) else list(words)
        variables = self._scope.of(draft.env)
        user = await asyncio.to_thread(user_of, draft, self._around.store)
        policy = self._around.policy.digest()
        key = step_key(["RUN", draft.layers, argv, variables, draft.workdir, list(user), policy])

        async def work(workshop: Workshop) -> None:
            await workshop.perform(argv, cwd=draft.workdir, env=variables, user=user, say=self._say)

        return await self._step(key, draft, work)

    async def _workdir(self, step: Setting, draft: Draft) -> tuple[Draft, bool]:
        text = self._scope.expand(step.at, step.value, self._scope.of(draft.env))
        path = posixpath.normpath(posixpath.join(draft.workdir, text))
        path = "/" + path.lstrip("/")
        changed = replace(draft, workdir=path)
        # Says now what is wrong with it, and not when the image is started.
        parse_config(changed.config())

        async def work(workshop: Workshop) -> None:
            await workshop.files.make(path, user=User(0, 0))

        return await self._step(step_key(["WORKDIR", draft.layers, path]), changed, work)

    async def _copy(self, step: Copy, draft: Draft) -> tuple[Draft, bool]:
        seen = self._scope.of(draft.env)
        sources = [self._scope.expand(step.at, each, seen) for each in step.sources]
        target = self._scope.expand(step.at, step.target, seen)
        whole = posixpath.join(draft.workdir, target)
        # "." and "dir/." are directories, as they are for `cp`.
        whole += "/" if target.rpartition("/")[2] in (".", "..") else ""
        owner = await asyncio.to_thread(self._owner, step, draft)
        documents = [
            (
                each.name,
                (
                    self._scope.fill(step.at, each.content, seen)
                    if each.is_expanded
                    else each.content
                ).encode("utf-8", "surrogateescape"),
            )
            for each in step.documents
        ]
        origin = None
        if step.origin is not None:
            origin = await self._find_origin(self._scope.expand(step.at, step.origin, seen))
        context = self._around.context
        if origin is None and context is not None:
            items = await asyncio.to_thread(find_items, context, sources)
            content: list[str] = await asyncio.to_thread(digest_items, items)
        elif origin is not None:
            items, content = [], [*origin.layers, *sources]
        else:
            raise RequestError("there is no context to copy from; use --from")
        said = [[name, text.decode("utf-8", "replace")] for name, text in documents]
        key = step_key([step.at.name, draft.layers, whole, content, said, list(owner), step.mode])

        async def work(workshop: Workshop) -> None:
            async with self._items(origin, sources, items) as found:
                cargo = Cargo(found, documents, whole, Manner(owner, step.mode), step.unpack)
                left_out = await bring(workshop, cargo)
            # What is remembered as these files must have been these files all along.
            if origin is None and await asyncio.to_thread(digest_items, items) != content:
                raise RequestError("the context changed while it was copied; build again")
            if left_out:
                self._note(f"{left_out} left out, being no file, directory or link")

        return await self._step(key, draft, work, unpacker=True)

    @contextlib.asynccontextmanager
    async def _items(
        self, origin: Draft | None, sources: list[str], items: list[Item]
    ) -> AsyncIterator[list[Item]]:
        if origin is None:
            yield items
            return
        async with taken_from(origin, sources, self._around.store) as found:
            yield found

    async def _find_origin(self, text: str) -> Draft:
        """Return what COPY --from names: an earlier stage, by name or number, or an image."""
        stage = self._stages.get(text.lower())
        if stage is not None:
            return stage
        return Draft.on(await asyncio.to_thread(Library(self._around.store).find, text))

    def _owner(self, step: Copy, draft: Draft) -> User:
        if step.chown is None:
            return User(0, 0)
        text = self._scope.expand(step.at, step.chown, self._scope.of(draft.env))
        layers = self._around.store.layers
        # A number alone is the group of the same number too.
        if text.isdecimal():
            text = f"{text}:{text}"
        return find_user(text, [layers.path(each) for each in reversed(draft.layers)])

    async def _step(
        self,
        key: str,
        draft: Draft,
        work: Callable[[Workshop], Awaitable[None]],
        *,
        unpacker: bool = False,
    ) -> tuple[Draft, bool]:
        """Do the work in a sandbox and keep what it changed, unless that is known already."""
        around = self._around
        if around.use_cache:
            known, made = await asyncio.to_thread(around.cache.find, key)
            if known:
                return draft.with_layer(made), True
        workshop = Workshop(
            around.policy, around.store, draft.base, draft.layers, unpacker=unpacker
        )
        async with workshop:
            await work(workshop)
            made = await workshop.keep()
        await asyncio.to_thread(around.cache.put, key, None if made is None else made[0])
        return draft.with_layer(made), False


def placed(error: CloisterError, place: str) -> CloisterError:
    """Return the same error with the line of the Dockerfile before its words."""
    if error.message.startswith(place):
        return error
    error.message = f"{place}: {error.message}"
    error.args = (error.message, *error.args[1:])
    return error
