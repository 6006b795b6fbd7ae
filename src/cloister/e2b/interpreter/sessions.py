"""The code sessions of one sandbox: each with a language, a directory, and a kernel of its own."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Mapping

from cloister.e2b.interpreter.bash_kernel import BashKernel
from cloister.e2b.interpreter.kernel import Frame, Kernel, unavailable
from cloister.e2b.interpreter.program_kernel import NodeKernel
from cloister.e2b.interpreter.python_kernel import PythonNursery
from cloister.e2b.interpreter.r_kernel import RKernel
from cloister.e2b.people import DEFAULT_USER, Person, find_person
from cloister.e2b.refusal import CallRefused
from cloister.errors import CloisterError
from cloister.sandbox import Sandbox

LANGUAGES = ("python", "javascript", "typescript", "bash", "r")
_ALIASES = {
    "js": "javascript",
    "ts": "typescript",
    "py": "python",
    "sh": "bash",
    "python3": "python",
}
_MAXIMUM_SESSIONS = 32
# How long an interrupted cell may take to end before its kernel is ended instead.
_OBEY_S = 3.0


class CodeSession:
    """One session; cells run in it one after another."""

    def __init__(self, id: str, language: str, cwd: str) -> None:
        self.id = id
        self.language = language
        self.cwd = cwd
        self.kernel: Kernel | None = None
        self.turn = asyncio.Lock()

    @property
    def shown(self) -> dict[str, str]:
        """What clients see of it."""
        return {"id": self.id, "language": self.language, "cwd": self.cwd}


class Sessions:
    """All sessions of a sandbox; the default one of a language is made when it is first used."""

    def __init__(self, sandbox: Sandbox, variables: Mapping[str, str]) -> None:
        self._sandbox = sandbox
        self._variables = variables
        self._sessions: dict[str, CodeSession] = {}
        self._defaults: dict[str, CodeSession] = {}
        self._nursery: PythonNursery | None = None
        self._finishing: set[asyncio.Task[None]] = set()

    async def warm(self) -> None:
        """Have a Python kernel ready before somebody asks for one."""
        person = await find_person(self._sandbox, DEFAULT_USER)
        await self._python(person).warm()

    async def create(self, language: str | None, cwd: str | None) -> CodeSession:
        """Make a session, with its kernel."""
        person = await find_person(self._sandbox, DEFAULT_USER)
        place = person.place(cwd or "")
        session = self._add(parse_language(language), place)
        try:
            session.kernel = await self._kernel(session)
        except BaseException:
            self._sessions.pop(session.id, None)
            raise
        return session

    async def list(self) -> list[CodeSession]:
        """Return all of them in the order they were made, those that exist by default first."""
        first = [await self.default("python"), await self.default("javascript")]
        return first + [each for each in self._sessions.values() if each not in first]

    def find(self, id: str) -> CodeSession:
        """Return one of them."""
        session = self._sessions.get(id)
        if session is None:
            raise CallRefused("not_found", f"Context {id[:64]} not found")
        return session

    async def default(self, language: str | None) -> CodeSession:
        """Return the session of a language that needs not be asked for."""
        name = parse_language(language)
        session = self._defaults.get(name)
        if session is None:
            person = await find_person(self._sandbox, DEFAULT_USER)
            # Somebody else may have made it while the user was looked up.
            session = self._defaults.get(name)
            if session is None:
                session = self._defaults[name] = self._add(name, person.home)
        return session

    async def restart(self, id: str) -> None:
        """Forget everything that a session knows."""
        session = self.find(id)
        await self._drop(session)

    async def remove(self, id: str) -> None:
        """End a session."""
        session = self.find(id)
        del self._sessions[id]
        if self._defaults.get(session.language) is session:
            del self._defaults[session.language]
        await self._drop(session)

    async def execute(
        self, session: CodeSession, code: str, variables: Mapping[str, str]
    ) -> AsyncGenerator[Frame, None]:
        """Run a cell in its turn. Whoever stops listening interrupts it."""
        await session.turn.acquire()
        is_over = False
        try:
            if session.kernel is None:
                session.kernel = await self._kernel(session)
            kernel = session.kernel
            async with contextlib.aclosing(kernel.execute(code, variables)) as frames:
                async for frame in frames:
                    yield frame
            is_over = True
        except CloisterError:
            is_over = True
            await self._drop(session)
            raise
        finally:
            if is_over:
                session.turn.release()
            else:
                # The client left: the turn is given on when the kernel has come to rest.
                task = asyncio.ensure_future(self._interrupt(session))
                self._finishing.add(task)
                task.add_done_callback(self._finishing.discard)

    async def close(self) -> None:
        """End all of them."""
        for task in tuple(self._finishing):
            task.cancel()
        await asyncio.gather(*self._finishing, return_exceptions=True)
        for session in list(self._sessions.values()):
            await self._drop(session)
        self._sessions.clear()
        self._defaults.clear()
        if self._nursery is not None:
            await self._nursery.close()

    async def _interrupt(self, session: CodeSession) -> None:
        try:
            kernel = session.kernel
            if kernel is not None:
                with contextlib.suppress(CloisterError):
                    await kernel.interrupt()
                    if await kernel.settle(_OBEY_S):
                        return
                await self._drop(session)
        finally:
            session.turn.release()

    async def _drop(self, session: CodeSession) -> None:
        kernel, session.kernel = session.kernel, None
        if kernel is not None:
            with contextlib.suppress(CloisterError):
                await kernel.close()

    def _add(self, language: str, cwd: str) -> CodeSession:
        if len(self._sessions) >= _MAXIMUM_SESSIONS:
            raise CallRefused(
                "resource_exhausted", f"{_MAXIMUM_SESSIONS} contexts exist; remove one first"
            )
        session = CodeSession(secrets.token_hex(16), language, cwd)
        self._sessions[session.id] = session
        return session

    async def _kernel(self, session: CodeSession) -> Kernel:
        person = await find_person(self._sandbox, DEFAULT_USER)
        match session.language:
            case "python":
                return await self._python(person).kernel(session.cwd)
            case "bash":
                return await BashKernel.start(self._sandbox, person, self._variables, session.cwd)
            case "r":
                return await RKernel.start(self._sandbox, person, self._variables, session.cwd)
        return await NodeKernel.start(
            *(self._sandbox, person, self._variables, session.cwd),
            has_types=session.language == "typescript",
        )

    def _python(self, person: Person) -> PythonNursery:
        if self._nursery is None:
            self._nursery = PythonNursery(self._sandbox, person, self._variables)
        return self._nursery


def parse_language(value: str | None) -> str:
    """Return the language of that name; Python where none is named."""
    name = (value or "python").lower()
    name = _ALIASES.get(name, name)
    if name not in LANGUAGES:
        raise unavailable(name[:32], f"the languages here are {', '.join(LANGUAGES)}")
    return name
