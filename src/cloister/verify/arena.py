"""What an attack is given: sandboxes to attack from, probes to run in them, and the canaries."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.errors import NotFound, Unsupported
from cloister.model import Mount, MountMode, Result, User
from cloister.node import Node
from cloister.sandbox import Sandbox
from cloister.verify.canary import Canary
from cloister.verify.case import NotApplicable, NotHeld
from cloister.verify.far_end import FarEnd
from cloister.verify.probes import assemble

PYTHON = "/usr/bin/python3"
_PROBE_S = 30.0
# Another kernel takes longer over it: emulated, or on a busy host, ten times and more.
_OWN_KERNEL_PROBE_S = 300.0
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Attempt:
    """How a probe's `attempt` ended: a value, the kernel's error, or a signal ("SIGSYS")."""

    where: str
    value: Any
    error: str | None
    text: str

    @property
    def allowed(self) -> bool:
        """Whether it went through."""
        return self.error is None

    def __str__(self) -> str:
        return f"{self.where}: {self.error or self.value}{self.text and ' ' + self.text}"


class Arena:
    """One case's place; everything its sandboxes print is kept and searched for canaries."""

    def __init__(self, canary: Canary, runtime: str | None = None) -> None:
        self.canary = canary
        self.runtime = runtime
        self.outputs: list[bytes] = []
        self._probe_s = _OWN_KERNEL_PROBE_S if self.own_kernel else _PROBE_S

    @property
    def own_kernel(self) -> bool:
        """Whether the sandboxes have a kernel of their own, which answers otherwise and later."""
        return self.runtime in ("gvisor", "microvm")

    @property
    def not_linux(self) -> bool:
        """Whether the kernel inside is gVisor's: the promise is the same, its words are its own."""
        return self.runtime == "gvisor"

    @property
    def far_end(self) -> FarEnd:
        """The listeners on the host."""
        return self.canary.far_end

    @contextlib.asynccontextmanager
    async def sandbox(self, **settings: Any) -> AsyncIterator[Sandbox]:
        """A running sandbox; the settings are those of `Sandbox`."""
        sandbox = self.prepare(**settings)
        async with sandbox:
            yield sandbox

    def prepare(self, **settings: Any) -> Sandbox:
        """Return a sandbox that is not started; its output is watched, and stopping it is yours."""
        if self.runtime is not None:
            settings.setdefault("runtime", self.runtime)
        return _Watched(self, settings)

    async def is_host_read_only(self, directory: Path) -> bool:
        """Whether nothing of the host is written to behind this wall: that is said, and is so."""
        if self.runtime != "microvm":
            return False
        with contextlib.suppress(Unsupported):
            async with self.sandbox(mounts=[Mount(directory, "/mnt/shared", MountMode.WRITE)]):
                raise NotHeld("a machine was given a directory of the host to write to")
        return True

    def record(self, data: bytes) -> None:
        """Keep output that did not come from `run`, such as that of a started process."""
        self.outputs.append(data)

    async def fresh_launcher(self) -> None:
        """End this loop's launcher, so that the next sandbox starts another."""
        await self.canary.remove_neighbour()
        await Node.current().close()
        await self.canary.plant_neighbour()

    def at_least(self, seconds: float) -> float:
        """Return for how long a probe may run that needs so many: another kernel takes longer."""
        return max(seconds, self._probe_s)

    async def python(
        self,
        sandbox: Sandbox,
        source: str,
        *arguments: str,
        user: str | int | User | None = None,
        **settings: Any,
    ) -> Result:
        """Run Python source inside; `settings` are those of `Sandbox.run`."""
        try:
            return await sandbox.run(
                [PYTHON, "-I", "-c", source, *arguments],
                user=user,
                **{"timeout": self._probe_s, **settings},
            )
        except NotFound:
            raise NotApplicable(
                f"there is no {PYTHON} in the sandbox to run probes with; use a root that has one"
            ) from None

    async def attempt(
        self,
        sandbox: Sandbox,
        source: str,
        *arguments: str,
        user: str | int | User | None = None,
        **settings: Any,
    ) -> Attempt:
        """Run a probe inside: source that defines `attempt(*arguments)`, see probes/prelude.py."""
        result = await self.python(sandbox, assemble(source), *arguments, user=user, **settings)
        return _read_attempt("inside", result.signal, result.stdout_bytes, result.stderr_bytes)

    async def attempt_in_terminal(
        self, sandbox: Sandbox, source: str, *arguments: str, user: str | int | User | None = None
    ) -> Attempt:
        """Run a probe inside with a pseudo-terminal as its three streams."""
        command = [PYTHON, "-I", "-c", assemble(source), *arguments]
        process = await sandbox.start(command, user=user, timeout=self._probe_s, pty=True)
        output = b"".join([chunk async for chunk in process.stdout])
        self.record(output)
        result = await process.wait()
        return _read_attempt("inside", result.signal, output, b"")

    async def attempt_on_host(self, source: str, *arguments: str) -> Attempt:
        """Run the same probe outside, as this user: the twin that shows that it works."""
        done = await asyncio.to_thread(
            subprocess.run,
            [PYTHON, "-I", "-c", assemble(source), *arguments],
            capture_output=True,
            timeout=_PROBE_S,
            check=False,
        )
        number = -done.returncode if done.returncode < 0 else None
        return _read_attempt("on the host", number, done.stdout, done.stderr)

    def expect_allowed(self, attempt: Attempt, what: str = "the allowed twin") -> Any:
        """Return what the attempt returned; one that failed proves nothing, so it is NotHeld."""
        if not attempt.allowed:
            raise NotHeld(f"{what} did not go through, so the case shows nothing ({attempt})")
        return attempt.value

    def expect_denied(self, attempt: Attempt, *errors: str, what: str = "the attempt") -> None:
        """Require the attempt to have failed with one of these errors, and not with another."""
        if attempt.allowed:
            raise NotHeld(f"{what} went through ({attempt})")
        if attempt.error not in errors:
            raise NotHeld(f"{what} failed, but not with {' or '.join(errors)} ({attempt})")

    def expect(self, holds: bool, otherwise: str) -> None:
        """Require a fact; `otherwise` says what is wrong."""
        if not holds:
            raise NotHeld(otherwise)

    def expect_each(
        self, answers: dict[str, str], errors: Collection[str], what: str = "attempt"
    ) -> None:
        """Require every answer of a probe that tried many things to be one of `errors`."""
        wrong = {name: answer for name, answer in answers.items() if answer not in errors}
        if wrong or not answers:
            told = ", ".join(f"{name}: {answer}" for name, answer in sorted(wrong.items()))
            raise NotHeld(
                f"{what} not answered with {' or '.join(sorted(errors))}: {told or 'none'}"
            )


class _Watched(Sandbox):
    """A sandbox whose output is kept for the oracle."""

    def __init__(self, arena: Arena, settings: dict[str, Any]) -> None:
        super().__init__(**settings)
        self._arena = arena

    async def run(self, command: str | Sequence[str | bytes], **settings: Any) -> Result:
        result = await super().run(command, **settings)
        self._arena.record(result.stdout_bytes)
        self._arena.record(result.stderr_bytes)
        return result


def _read_attempt(where: str, number: int | None, stdout: bytes, stderr: bytes) -> Attempt:
    if number is not None:
        return Attempt(where, None, signal.Signals(number).name, "")
    lines = stdout.decode("utf-8", "replace").splitlines()
    try:
        answer = json.loads(lines[-1])
    except (IndexError, ValueError):
        text = stderr.decode("utf-8", "replace")[-_SHOWN:].strip()
        raise NotHeld(f"the probe broke {where}, so the case shows nothing: {text}") from None
    return Attempt(where, answer.get("value"), answer.get("errno"), answer.get("text", ""))
