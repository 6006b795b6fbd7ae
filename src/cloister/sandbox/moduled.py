"""The part of a sandbox that runs modules of WebAssembly, where its wall is for them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from cloister.errors import RequestError, Unsupported
from cloister.model import Result, User, parse_bytes, parse_command, parse_cwd, quote
from cloister.sandbox.process import Command, Process, Record

if TYPE_CHECKING:
    from cloister.errors import CloisterError
    from cloister.policy import Policy
    from cloister.runtime.base import Guest
    from cloister.sandbox.accounts import Accounts
    from cloister.sandbox.modules import ModuleCall, Modules, Say
    from cloister.sandbox.sandbox import Sandbox
    from cloister.sandbox.span import Span
    from cloister.sandbox.surroundings import Surroundings
    from cloister.wire import Link


class Moduled:
    """Modules are files of WebAssembly for WASI preview 1, which export `_start`."""

    policy: Policy
    _accounts: Accounts
    _cwd: str
    _modules: Modules | None = None
    _span: Span
    _surroundings: Surroundings

    if TYPE_CHECKING:

        @property
        def link(self) -> Link: ...
        def _lost(self, error: CloisterError) -> None: ...
        def _running(self) -> Guest: ...
        def enter(self) -> None: ...
        def leave(self) -> None: ...
        async def wait_until_moving(self) -> None: ...
        async def end_step(
            self, command: str | Sequence[str | bytes], result: Result | None = None
        ) -> None: ...
        def permitted(
            self, user: str | int | User | None, argv: tuple[bytes, ...] = ()
        ) -> User: ...

    @property
    def modules(self) -> Modules:
        """What runs modules in it, where its wall is for them."""
        from cloister.sandbox.modules import Modules

        if self._modules is None:
            self._modules = Modules(cast("Sandbox", self), self._lost)
        return self._modules

    def warm_modules(self) -> None:
        """Have ready what the first call of a module needs, where there may be one."""
        if self.runs_modules:
            self.modules.warm()

    async def close_modules(self) -> None:
        """Begin no module any more."""
        if self._modules is not None:
            await self._modules.close()

    def make_process(self, command: Command, record: Record | None = None) -> Process:
        """Return a process that is not started yet, of ours or of a caller's."""
        return Process(self.link, command, self._accounts.why, self._lost, record)

    @property
    def runs_modules(self) -> bool:
        """Whether it runs modules, and nothing else."""
        return self._running().runs_modules

    def require_programs(self, what: str) -> None:
        """Refuse what only programs of an operating system can do."""
        if self._running().runs_modules:
            raise Unsupported(
                f'the runtime "wasm" has no {what}: it runs modules, with run([...]) or '
                'run_module(); name runtime = "namespace" or "gvisor"'
            )

    async def run_module(
        self,
        module: bytes | os.PathLike[str] | None,
        arguments: Sequence[str] = (),
        *,
        name: str = "module.wasm",
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | str | None = None,
        stdin: bytes | str | None = None,
        output: int | None = None,
        say: Say | None = None,
    ) -> Result:
        """Run a module of the host's to its end, which need not be inside.

        `name` is what it is called in its own argv, where that is not the name of its file; without
        a module, it is the path of one inside. `say` is told (1 or 2, bytes) of what it prints, as
        it comes. The rest is as `run` takes it.
        """
        if isinstance(module, os.PathLike):
            from cloister.sandbox.modules import read_module

            name = os.path.basename(os.fspath(module))
            module = await asyncio.to_thread(read_module, module)
        return await self.call_module(
            [name, *arguments], module, cwd, env, None, timeout, stdin, output, say
        )

    async def call_module(
        self,
        command: str | Sequence[str | bytes],
        module: bytes | None,
        cwd: str | os.PathLike[str] | None,
        env: Mapping[str, str] | None,
        user: str | int | User | None,
        timeout: float | str | None,
        stdin: bytes | str | None,
        output: int | None,
        say: Say | None = None,
    ) -> Result:
        """Run a module, the host's or the one inside that the command names."""
        if not self.runs_modules:
            raise Unsupported(
                f'the runtime "{self._running().runtime}" runs programs and no modules; name '
                'runtime = "wasm"'
            )
        call = self._module_call(command, module, cwd, env, user, timeout, stdin, output)
        await self.wait_until_moving()
        self.enter()
        try:
            result = await self.modules.run(call, say)
        finally:
            self.leave()
        if self.policy.history.value != "none":
            await self.end_step(command, result)
        return result

    def _module_call(
        self,
        command: str | Sequence[str | bytes],
        module: bytes | None,
        cwd: str | os.PathLike[str] | None,
        env: Mapping[str, str] | None,
        user: str | int | User | None,
        timeout: float | str | None,
        stdin: bytes | str | None,
        output: int | None,
    ) -> ModuleCall:
        from cloister.sandbox.modules import MAX_STDIN_BYTES, ModuleCall

        if isinstance(command, str):
            self.require_programs("shell, which a command in one string is for")
        argv = parse_command(command)
        who = self.permitted(user, argv)
        if who != self.policy.run_as:
            self.require_programs(f"other user {who.uid}:{who.gid}")
        data = stdin.encode() if isinstance(stdin, str) else bytes(stdin or b"")
        if len(data) > MAX_STDIN_BYTES:
            raise RequestError(
                f"stdin has {len(data)} bytes; a module is given {MAX_STDIN_BYTES} at most: "
                "write a file instead"
            )
        where = parse_cwd(os.fspath(self._cwd if cwd is None else cwd))
        limits = self.policy.limits
        return ModuleCall(
            argv=tuple(_text(word, "argv") for word in argv),
            module=module,
            cwd=os.path.normpath(where),
            env={
                _text(os.fsencode(key), "env"): _text(os.fsencode(value), "env")
                for key, value in self._surroundings.variables(argv, who, env).items()
            },
            user=who,
            stdin=data,
            timeout_s=self._span.timeout(timeout),
            kept_bytes=limits.output if output is None else parse_bytes(output, "output"),
        )


def _text(word: bytes, what: str) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise RequestError(
            f"{what} has {quote(word)}, which is not UTF-8; modules are given text only"
        ) from None
