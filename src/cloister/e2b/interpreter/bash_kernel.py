"""A session of bash: one shell that stays, each cell evaluated in it."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Mapping
from functools import partial

from cloister.e2b.interpreter.kernel import Frame, unavailable
from cloister.e2b.interpreter.marked_streams import MarkedKernel, MarkedStreams
from cloister.e2b.people import Person
from cloister.errors import NotFound
from cloister.sandbox import Process, Sandbox

# An interrupt ends what the shell waits for, not the shell.
_BEGIN = b"trap : INT\n"


class BashKernel(MarkedKernel):
    """One bash session."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._streams = MarkedStreams(process, self._hand_over)
        self._count = 0

    @classmethod
    async def start(
        cls, sandbox: Sandbox, person: Person, variables: Mapping[str, str], cwd: str
    ) -> BashKernel:
        """Start a session."""
        try:
            process = await sandbox.start(
                ["bash", "--norc", "--noprofile"],
                cwd=cwd,
                env={**person.variables, **variables},
                user=person.user,
                stdin=True,
            )
        except NotFound:
            raise unavailable("bash", "the image has no bash; add it") from None
        kernel = cls(process)
        await kernel._hand_over(_BEGIN)
        return kernel

    async def execute(self, code: str, variables: Mapping[str, str]) -> AsyncGenerator[Frame, None]:
        """Run a cell; yield what comes of it."""
        self._count += 1
        yield {"type": "number_of_executions", "execution_count": self._count}
        await self._streams.begin(partial(_cell, code, variables))
        async for frame in self._streams.until_end():
            if frame["type"] != "status":
                yield frame
            elif frame["status"] not in ("", "0"):
                words = f"exit status {frame['status']}"
                yield {"type": "error", "name": "ExitStatus", "value": words, "traceback": words}
        yield {"type": "end_of_execution"}

    async def _hand_over(self, line: bytes) -> None:
        if self._process.stdin is not None:
            await self._process.stdin.write(line)


def _cell(code: str, variables: Mapping[str, str], mark: str) -> bytes:
    # As base64: whatever the cell holds, it cannot end the line it travels on.
    encoded = base64.b64encode(code.encode("utf-8", "replace")).decode()
    names = [name for name in variables if name.isidentifier() and name.isascii()]
    setting = "".join(
        f'export {name}="$(base64 -d <<< {base64.b64encode(variables[name].encode()).decode()})";'
        for name in names
    )
    saving = "".join(
        f'__{name}_was="${{{name}-}}"; __{name}_had="${{{name}+x}}";' for name in names
    )
    restoring = "".join(
        f'if [ -n "$__{name}_had" ]; then export {name}="$__{name}_was"; else unset {name}; fi;'
        for name in names
    )
    line = (
        f'{saving}{setting} eval "$(base64 -d <<< {encoded})" < /dev/null; __status=$?; {restoring}'
        f" printf '%s%s\\n' {mark} $__status; printf '%s\\n' {mark} >&2\n"
    )
    return line.encode()
