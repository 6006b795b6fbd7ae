"""One sandbox as Inspect uses it: commands, files, and a life that is its sample's."""

from __future__ import annotations

import asyncio
import errno
import posixpath
import shlex
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
)
from pydantic import BaseModel

from cloister.errors import CloisterError, Denied, NotFound, Unsupported
from cloister.inspect.attached import new_name, remove, remove_left
from cloister.inspect.config import POLICY_FILE, CloisterConfig, read_config
from cloister.inspect.outcomes import exec_failure, exec_result, file_errors
from cloister.inspect.users import find_account
from cloister.model import UNLIMITED, User, quote
from cloister.sandbox import Sandbox
from cloister.sandbox.entries import Kind

# By absolute paths and a fixed PATH: what runs for us is not what an image put in front of it.
_OVERWRITE = ("/bin/sh", "-c", 'exec cat > "$1"', "sh")
_FIXED = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_REFUSALS = (
    ("Permission denied", errno.EACCES),
    ("Is a directory", errno.EISDIR),
    ("No space left", errno.ENOSPC),
    ("Read-only file system", errno.EROFS),
    ("Text file busy", errno.ETXTBSY),
)


class CloisterEnvironment(SandboxEnvironment):
    """A Cloister sandbox of one sample."""

    def __init__(self, sandbox: Sandbox, name: str | None = None) -> None:
        super().__init__()
        self.sandbox = sandbox
        self.name = name

    @classmethod
    async def sample_init(
        cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Start the sandbox of a sample."""
        _require_asyncio()
        asked = read_config(config)
        name = new_name() if asked.attach else None
        sandbox = Sandbox(
            asked.policy,
            template=asked.template,
            keep=name,
            label=f"inspect {task_name} {metadata.get('__sample_id__', '')}".strip(),
            **asked.changes,
        )
        try:
            await sandbox.open()
        except BaseException:
            if name is not None:
                await asyncio.shield(remove(name))
            raise
        return {"default": cls(sandbox, name)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: BaseModel | str | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """End the sandboxes of a sample with everything in them, however the sample ended."""
        for environment in environments.values():
            ours = environment.as_type(CloisterEnvironment)
            await ours.sandbox.stop()
            if ours.name is not None:
                await remove(ours.name)

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Remove what ended evaluations left; with an id that sandbox, running or not."""
        _require_asyncio()
        await remove_left(id)

    @classmethod
    def config_files(cls) -> list[str]:
        """Return the name of the policy file that is looked for beside a task."""
        return [POLICY_FILE]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Read a configuration out of a log or a file; an unknown key is an error."""
        return CloisterConfig(**config)

    def default_polling_interval(self) -> float:
        """Return how often Inspect may ask: a request costs about a millisecond here."""
        return 0.2

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command; at the timeout its whole tree of processes is killed.

        It is never run a second time by itself, and needs no place among the host's processes:
        the sandbox has a cpu limit of its own.
        """
        who, variables = await self._account(user)
        unlimited = UNLIMITED if self.sandbox.policy.limits.wall is None else None
        try:
            result = await self.sandbox.run(
                cmd,
                stdin=input,
                cwd=self._resolve(cwd or "."),
                env={**variables, **(env or {})} or None,
                user=who,
                timeout=unlimited if timeout is None else timeout,
                output=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE,
            )
        except Denied as error:
            raise SandboxUserUnsupportedError(str(error)) from error
        except CloisterError as error:
            return exec_failure(error)
        return exec_result(result, timeout)

    async def _account(self, name: str | None) -> tuple[User | None, dict[str, str]]:
        if name is None:
            return None, {}
        with file_errors("/etc/passwd"):
            account = await find_account(self.sandbox, name)
        if account is None:
            raise SandboxUserUnsupportedError(f"there is no user {quote(name)} in the sandbox")
        return account.user, account.env

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file; missing directories are made, and what is there keeps owner and mode."""
        path = self._resolve(file)
        with file_errors(path):
            try:
                found = await self.sandbox.files.stat(path)
            except NotFound:
                await self.sandbox.files.write(path, contents)
                return
            if found.kind is Kind.DIRECTORY:
                raise IsADirectoryError(errno.EISDIR, "it is a directory", path)
            result = await self.sandbox.run(
                [*_OVERWRITE, path], stdin=contents, env=_FIXED, timeout=UNLIMITED
            )
        if not result.ok:
            said = result.stderr[:400]
            number = next((each for words, each in _REFUSALS if words in said), errno.EIO)
            raise OSError(number, said.strip() or result.describe(), path)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Return a file's content, up to Inspect's limit."""
        path = self._resolve(file)
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        with file_errors(path):
            try:
                data = await self.sandbox.files.read(path, limit=limit)
            except CloisterError:
                await self._require_no_directory(path)
                raise
        return data.decode("utf-8") if text else data

    async def _require_no_directory(self, path: str) -> None:
        if (await self.sandbox.files.stat(path)).kind is Kind.DIRECTORY:
            raise IsADirectoryError(errno.EISDIR, "it is a directory", path)

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """Return the command that opens a terminal inside, where the configuration allows it."""
        if not self.sandbox.is_running:
            raise ConnectionError("the sandbox is not running")
        if self.name is None:
            raise NotImplementedError(
                "this sandbox has no name; set attach in its CloisterConfig to reach it"
            )
        words = ["cloister", "exec", "--tty"]
        if user is not None:
            who, _ = await self._account(user)
            words += [] if who is None else ["--user", f"{who.uid}:{who.gid}"]
        words += [self.name, "--", "/bin/sh"]
        return SandboxConnection(type="cloister", command=shlex.join(words), container=self.name)

    def _resolve(self, path: str) -> str:
        joined = posixpath.join(self.sandbox.working_directory, path)
        # Not `..`: through a link it leads elsewhere, and the kernel inside knows where.
        return joined if ".." in joined.split("/") else posixpath.normpath(joined)


def _require_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError as error:
        raise Unsupported(
            "sandboxes need asyncio; unset INSPECT_ASYNC_BACKEND, or set it to asyncio"
        ) from error
